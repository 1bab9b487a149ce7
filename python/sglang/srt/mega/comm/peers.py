# SPDX-License-Identifier: Apache-2.0
"""How ranks learn the addresses of each other's inboxes.

A kernel only needs an array of pointers. They come from one process that holds every rank
(``connect_virtual``: the emulator, or several ranks on one GPU), or from CUDA IPC between the processes of a
group (``IpcInbox``). Memory that something else maps, such as torch's symmetric memory (its ``buffer_ptrs``),
goes to ``Mailbox.connect`` as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sglang.srt.mega.comm.mailbox import Mailbox, MailboxLayout


def connect_virtual(mailboxes: Sequence[Mailbox]) -> None:
    """Connects mailboxes of one process, given in rank order."""
    inboxes = [mailbox.inbox.data_ptr() for mailbox in mailboxes]
    for mailbox in mailboxes:
        mailbox.connect(inboxes)


class IpcInbox:
    """An inbox in its own CUDA allocation, which the other processes of the group map.

    ``exchange`` sends this rank's bytes to all and returns everyone's in rank order, for example a wrapper of
    ``torch.distributed.all_gather_object`` on the group's CPU communicator. Construction is collective.
    """

    def __init__(
        self,
        layout: MailboxLayout,
        rank: int,
        device: torch.device,
        exchange: Callable[[bytes], Sequence[bytes]],
        slot: int = 0,
    ) -> None:
        from cuda.bindings import driver

        self._driver = driver
        torch.cuda.set_device(device)
        torch.cuda.current_stream().synchronize()
        self._address = int(self._check(driver.cuMemAlloc(layout.inbox_bytes)))
        self._mapped: list[int] = []
        memory = _view(self._address, layout.inbox_bytes, device)
        self.mailbox = Mailbox(layout, rank, device, slot, memory)
        torch.cuda.synchronize(device)  # the inbox is empty before any peer can write
        handle = bytes(self._check(driver.cuIpcGetMemHandle(self._address)).reserved)
        handles = exchange(handle)
        addresses = [
            self._address if peer == rank else self._open(peer_handle)
            for peer, peer_handle in enumerate(handles)
        ]
        self.mailbox.connect(addresses)
        exchange(b"connected")  # nobody launches before everybody has mapped

    def close(self) -> None:
        """Unmaps the peers' inboxes and frees this one; call it on every rank when no kernel runs."""
        for address in self._mapped:
            self._check(self._driver.cuIpcCloseMemHandle(address))
        self._mapped.clear()
        self._check(self._driver.cuMemFree(self._address))

    def _open(self, handle: bytes) -> int:
        opened = self._driver.CUipcMemHandle()
        opened.reserved = handle
        flags = self._driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        address = int(self._check(self._driver.cuIpcOpenMemHandle(opened, flags)))
        self._mapped.append(address)
        return address

    def _check(self, result):  # type: ignore[no-untyped-def]
        status, *values = result
        if status != self._driver.CUresult.CUDA_SUCCESS:
            text = self._driver.cuGetErrorString(status)[1]
            raise RuntimeError(f"inbox shared over CUDA IPC: {text.decode() if text else status}")
        return values[0] if values else None


class _Memory:
    """Device memory under ``__cuda_array_interface__``, so that torch views it without owning it."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size // 4,),
            "typestr": "<i4",
            "data": (address, False),
            "version": 3,
        }


def _view(address: int, size: int, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(_Memory(address, size), device=device)
