# SPDX-License-Identifier: Apache-2.0
"""Exchanges between the GPUs of a tensor-parallel group, inside kernels.

``mailbox``    the memory of a Lamport mailbox: layout, allocation, the descriptor that kernels read
``peers``      how ranks learn each other's addresses: one process (virtual ranks), CUDA IPC
``deadline``   how long a kernel waits for a peer, and the record it leaves before it faults
``hop``        all-reduce + residual add + RMSNorm: the kernels behind a layer boundary
``reference``  the same in plain torch
"""
