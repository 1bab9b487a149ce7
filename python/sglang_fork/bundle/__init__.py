# SPDX-License-Identifier: Apache-2.0
"""``bundle``: everything that installs on a machine with no network, for one Python, machine and GPU
architecture.

``fetch`` downloads the lock's wheels for the target, ``slim`` prunes the GPU code of other architectures
from those whose licence allows a changed copy, ``sbom`` lists what is inside and under which licences,
``pack`` writes the payload, its pieces and the installer, ``install`` runs on the target.
"""
