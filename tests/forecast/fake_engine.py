"""An engine of a forecast for tests: memory is a base and bytes per padded token, and nothing is simulated."""

import json
from dataclasses import replace
from pathlib import Path

from profiler.config.trials.identity import spec_from_mapping
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.memory import GIB, MIB, Phase
from profiler.domain.runs.forecast import Death, ForecastRequest, ForecastStep, Learnt, line_object

BASE_BYTES, TOKEN_BYTES = 12 * GIB, 2 * MIB


class FakeEngine:
    """Answers requests; `dies_after` lines it stops as a killed process does, in the middle of a line."""

    def __init__(self, *, dies_after=None, base_bytes=BASE_BYTES):
        self.requests, self.lines, self._left, self._base = [], 0, dies_after, base_bytes

    def __call__(self, request: Path, answer: Path, tick) -> None:
        job = ForecastRequest.of(json.loads(request.read_text()))
        self.requests.append(job)
        known = {}
        for line in answer.read_text().splitlines() if answer.exists() else ():
            found = json.loads(line)
            key = (found.get("kind"), found.get("seed"), found.get("alloc_conf"), found.get("step"))
            known[key] = found
        with answer.open("a") as file:
            for line in self._all(job):
                found = line_object(line)
                if (found["kind"], found.get("seed"), found.get("alloc_conf"), found.get("step")) in known:
                    continue
                if self._left == 0:
                    file.write('{"kind": "st')
                    raise KeyboardInterrupt
                self._left = None if self._left is None else self._left - 1
                file.write(json.dumps(found) + "\n")
                file.flush()
                self.lines += 1
                tick()

    def _all(self, job):
        yield Learnt(shapes=6, events_per_step=139_000, layers_run=4, whole=None)
        for draw in job.draws:
            for conf in job.settings:
                yield from self._run(job, draw, conf)

    def _run(self, job, draw, conf):
        spec = spec_from_mapping(job.spec)
        gpu = gpu_named(spec.gpu)
        usable = gpu.memory_bytes - cuda_context_bytes(gpu.compute_capability)
        rows, per_step = spec.per_device_train_batch_size, spec.gradient_accumulation_steps
        reserved = 0
        for step in range(1, job.steps + 1):
            own = draw.completions[(step - 1) * rows * per_step : step * rows * per_step]
            parts = [own[place : place + rows] for place in range(0, len(own), rows)]
            longest = max(max(part) * len(part) for part in parts)
            allocated = self._base + TOKEN_BYTES * longest
            is_evaluated = draw.evaluations is not None and draw.evaluations.follows(step, job.steps)
            allocated += GIB * is_evaluated
            held = 0 if conf else 128 * MIB
            wanted = max(reserved, allocated + held)
            line = ForecastStep(
                seed=draw.seed,
                alloc_conf=conf,
                step=step,
                longest_prompt=max(draw.prompts, default=0),
                longest_completion=max(own),
                scored_tokens=sum(own),
                allocated_bytes=allocated,
                reserved_bytes=wanted,
                reserved_after_bytes=wanted,
                inactive_split_bytes=held,
                phase=Phase.EVALUATION if is_evaluated else Phase.BACKWARD,
            )
            if wanted > usable:
                yield Death(
                    seed=draw.seed,
                    alloc_conf=conf,
                    step=step,
                    phase=Phase.BACKWARD,
                    requested_bytes=512 * MIB,
                    free_bytes=usable - reserved,
                    allocated_bytes=reserved,
                    reserved_bytes=reserved,
                    row_tokens=max(own) + max(draw.prompts, default=0),
                    rows=rows,
                )
                return
            reserved = wanted
            yield replace(line)
