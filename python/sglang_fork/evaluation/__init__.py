# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh eval``: accuracy of a served model, and of the megakernel against stock."""
