"""Gloo in NCCL's place under the weights that TRL sends to vLLM, for machines without a GPU.

Python imports this file by itself in every process that has its folder on PYTHONPATH: the rank, the server, its engine
and the engine's worker. It waits for the modules below to be imported and changes the names that stand in CHANGES;
packing, unpacking, loading, HTTP and generation stay vLLM's and TRL's own.

GLOO_FRESH_UPDATES: the worker takes so many updates; in the place of later ones it loads the last of these again, as a
server would that no new weights reach.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from contextlib import nullcontext
from datetime import timedelta

_TIMEOUT = timedelta(seconds=300)


class GlooCommunicator:
    """What the transfer uses of vLLM's PyNcclCommunicator: a broadcast in a group opened by the trainer, rank 0."""

    def __init__(self, group, device):
        from torch.distributed import PrefixStore, ProcessGroupGloo

        self.group = group  # TRL closes its store and its socket in the end
        self._gloo = ProcessGroupGloo(PrefixStore("gloo", group.store), group.rank, group.world_size, _TIMEOUT)
        self._is_receiver = group.rank > 0
        self._fresh_left = int(os.environ.get("GLOO_FRESH_UPDATES", sys.maxsize))
        self._last_fresh = None

    def broadcast(self, tensor, src, stream=None):
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self._gloo.broadcast([tensor], options).wait()
        if self._is_receiver and self._fresh_left > 0:
            self._fresh_left -= 1
            self._last_fresh = tensor.clone()
        elif self._is_receiver:
            tensor.copy_(self._last_fresh)


class NoStream:
    """A CUDA stream of a machine that has none: all is done in order."""

    def __init__(self, device=None):
        pass

    def synchronize(self):
        pass


def use_gloo(pynccl):
    pynccl.PyNcclCommunicator = GlooCommunicator


def use_no_streams(_):
    import torch

    torch.cuda.Stream, torch.cuda.stream = NoStream, lambda stream: nullcontext()
    torch.accelerator.current_device_index = lambda: 0


def join_from_a_cpu(client):
    """TRL refuses to send from a CPU; a CUDA device without a number is one that it does not set."""
    import torch

    join = client.VLLMClient.init_communicator
    client.VLLMClient.init_communicator = lambda self, device=0: join(self, torch.device("cuda"))


CHANGES = {
    "vllm.distributed.device_communicators.pynccl": use_gloo,
    "vllm.distributed.weight_transfer.packed_tensor": use_no_streams,
    "trl.generation.vllm_client": join_from_a_cpu,
}


class ChangedOnImport(importlib.abc.MetaPathFinder):
    """Finds the modules of CHANGES where they are, and changes each after it has run."""

    def find_spec(self, name, path=None, target=None):
        if name not in CHANGES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None:
            return None
        run = spec.loader.exec_module

        def run_and_change(module):
            run(module)
            CHANGES[name](module)

        spec.loader.exec_module = run_and_change
        return spec


sys.meta_path.insert(0, ChangedOnImport())
