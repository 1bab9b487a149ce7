# SPDX-License-Identifier: Apache-2.0
"""``doctor``: what this machine and the built environment have, what is wrong, what that breaks and how to
mend it.

``machine`` is all that a check may look at (a root folder, an environment, commands), so every check also
runs on a made-up machine; ``toolchain``, ``libraries`` and ``resources`` hold the checks; ``report``
prints them.
"""
