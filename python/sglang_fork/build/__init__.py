# SPDX-License-Identifier: Apache-2.0
"""``build``: from the lock and the patch stack to an environment that serves.

``installer`` finds uv, ``forkwheel`` repacks upstream's wheel around the patched tree, ``profile`` says
what an environment holds, ``environment`` makes it, ``stub`` and ``cudahome`` add what no package carries,
``stamp`` says whether anything is to be done, ``run`` puts them in order.
"""
