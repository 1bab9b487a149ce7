# SPDX-License-Identifier: Apache-2.0
"""The patch stack: an SGLang wheel, ordered patches on it, and the fork's own files, as one git branch.

For callers:

* ``apply.apply_stack() -> AppliedTree(path, tree_hash, patch_count, base_version, wheel, changed)``
* ``wheel.fetch_base_wheel(Platform("cp312", "aarch64")) -> Path`` of a verified wheel of the base release
* ``platforms.Platform``, ``platforms.native_platform()``, ``platforms.ALL_PLATFORMS``
* ``base.source_members(zipfile)``: what of a wheel is in the tree; the rest is ``.so`` files and metadata
* ``workspace.source_dir()``: the patched tree

Everything here is standard library and git.
"""
