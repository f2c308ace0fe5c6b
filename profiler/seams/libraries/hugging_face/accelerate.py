"""Seams of accelerate."""

from profiler.seams.expectations import Exists, Parameters, Uses
from profiler.seams.seam import Seam

ACCELERATE: tuple[Seam, ...] = (
    Seam(
        owner="accelerate.state:PartialState",
        name="_shared_state",
        expected=Exists(),
        used_by=("simulation/session.py",),
        why="holds the device of the process",
        since="1.4",
    ),
    Seam(
        owner="accelerate.state:AcceleratorState",
        name="_shared_state",
        expected=Exists(),
        used_by=("simulation/session.py",),
        why="holds the device of the process",
        since="1.4",
    ),
    Seam(
        owner="accelerate.utils.memory",
        name="clear_device_cache",
        expected=Parameters("garbage_collection"),
        used_by=("simulation/cuda/emptied_cache.py",),
        why="empties the cache of the CUDA allocator when training begins",
        since="1.4",
    ),
    Seam(
        owner="accelerate",
        name="init_empty_weights",
        expected=Parameters("include_buffers", more=True),
        used_by=("training/models/model.py",),
        why="makes a model without memory, which is filled layer by layer",
        since="1.4",
    ),
    Seam(
        owner="accelerate.commands.launch",
        name="_validate_launch_command",
        expected=Parameters("args"),
        used_by=("worker/scripts/accelerate_launch.py",),
        why="reads the configuration of `accelerate launch`",
        since="1.4",
    ),
    Seam(
        owner="accelerate.utils.launch",
        name="prepare_multi_gpu_env",
        expected=Parameters("args"),
        used_by=("worker/scripts/accelerate_launch.py",),
        why="returns the variables of a process of several GPUs",
        since="1.4",
    ),
    Seam(
        owner="accelerate.utils.deepspeed:DeepSpeedEngineWrapper",
        name="backward",
        expected=Uses("self.engine.backward", "self.engine.step"),
        used_by=("training/announced_steps.py",),
        why="steps right after the backward, so that the phase of the optimizer begins there",
        since="1.4",
    ),
)
