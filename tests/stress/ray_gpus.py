"""Slots with GPUs on a machine that has none: Ray counts what a node declares, and a scripted driver answers."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "measurement"))  # where `scripted` is

from scripted import ScriptedNvml

from profiler.cluster.slots import Slot
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus

CARD = KNOWN_GPUS["h100-80gb"]
UUIDS = ("GPU-of-ray-0", "GPU-of-ray-1")


class ScriptedSlot(Slot):
    """A slot on a node with two GPUs, of which it sees those that Ray has chosen."""

    @staticmethod
    def visible():
        """Return the GPUs that Ray's CUDA_VISIBLE_DEVICES names, by index."""
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1")
        uuids = [UUIDS[int(index)] for index in chosen.split(",") if index]
        gpus = tuple(VisibleGpu(uuid=uuid, name=CARD.title, memory_bytes=CARD.memory_bytes) for uuid in uuids)
        return VisibleGpus(gpus=gpus, note="", driver_version="580.65.06")

    @staticmethod
    def nvml():
        """Return a driver whose GPUs are empty and sound."""
        return ScriptedNvml()
