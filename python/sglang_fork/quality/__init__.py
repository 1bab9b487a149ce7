# SPDX-License-Identifier: Apache-2.0
"""What ``test`` runs: linters and type checker (``lint``), then pytest area by area (``suite``)."""
