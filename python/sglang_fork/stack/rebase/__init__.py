# SPDX-License-Identifier: Apache-2.0
"""``rebase``: move the patches onto another release, or onto upstream's git, beside the tree that works.

``run`` starts, continues and aborts; ``target`` makes the new base; ``port`` moves one patch and gives its
verdict; ``candidate`` is the checkout that must be green before the current one changes; ``report`` says what
happened.
"""
