# SPDX-License-Identifier: Apache-2.0
"""Megakernel decode steps that live in this SGLang tree.

``slots``     what a replaceable piece of a step declares, and how a slot list is read
``plan``      (slot, rows) -> kernel or stock, each "stock" with its reason
``step``      the covered step that is running: the guarded calls of the model files ask it
``view``      the running forward's state, as every attention backend shares it
``executor``  the object that SGLang's binding installs (BuiltMegakernel, version 2)
``parity``    a slot against its stock twin on the same inputs
``derived``   memory beside the weights, and the KV tokens which it costs
``coverage``  how many steps ran the megakernel
``host``      what the binding asks about the device, with or without a GPU
``in_tree``   the specs of this tree
"""
