"""Claims of trials between machines: objects that are created conditionally, and renewed by their holder.

A claim is the object ``claims/<trial>.<generation>``. Who creates it holds the trial. A claim whose object has not
changed for `lease_s` has run out, by the clock of the machine that looks at it, so that clocks need not agree; that
machine takes the trial over by creating the next generation, which again only one machine can do.
"""

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from profiler.domain.machines.engines import THIS_MACHINE, Holder, OtherMachines
from profiler.storage.files.atomic import StorageError, host_place, process_runs
from profiler.storage.stores.objects import Objects

CLAIMS = "claims/"
_NAME = re.compile(rf"{CLAIMS}(?P<trial_id>[^/]+)\.(?P<generation>[0-9]{{6}})")

RENEWALS = 4
"""How often a claim is renewed within `lease_s`."""

_HOSTS_AT_ONCE = 200
"""Most claims of others that are read per renewal, to know their hosts."""

_LOOK_AGAIN_S = 1.0
"""Age of a list of claims that is good enough to leave a trial to others."""


@dataclass(kw_only=True)
class Lease:
    """A claim that this process holds."""

    trial_id: str
    generation: int
    token: str
    renewed_s: float
    """When the last successful renewal was asked for, on the monotonic clock."""
    renewals: int = 0
    lost: bool = False
    """Whether another machine has taken the trial over."""

    @property
    def name(self) -> str:
        """The name of its object."""
        return claim_name(self.trial_id, self.generation)

    @property
    def content(self) -> bytes:
        """The content of its object: different from that of any other claim, and after each renewal."""
        return json.dumps(
            {"place": host_place(), "pid": os.getpid(), "token": self.token, "renewals": self.renewals}
        ).encode()


@dataclass(kw_only=True)
class _Seen:
    """A claim as it was listed."""

    stamp: str
    since_s: float
    """Since when it has not changed, as far as this machine saw."""


def claim_name(trial_id: str, generation: int) -> str:
    """Return the name of the object of a claim."""
    return f"{CLAIMS}{trial_id}.{generation:06d}"


def _parts(name: str) -> tuple[str, int]:
    """Return the trial and the generation of the name of a claim; generation 0 if the name is of something else."""
    found = _NAME.fullmatch(name)
    return (found["trial_id"], int(found["generation"])) if found else ("", 0)


def _claims(listed: Mapping[str, str]) -> dict[str, str]:
    """Return the claims among listed objects, with their stamps: a store can have objects that no sweep has made."""
    return {name: stamp for name, stamp in listed.items() if _parts(name)[1]}


def _host(content: bytes) -> str:
    """Return the host that the content of a claim names, without its container; empty if it names none."""
    try:
        place = json.loads(content)["place"]
    except (ValueError, KeyError, TypeError):
        return ""
    host = place.rpartition("-")[0] if isinstance(place, str) else ""
    return THIS_MACHINE if host == host_place().rpartition("-")[0] else host


@dataclass(kw_only=True)
class Leases:
    """The claims of one process, which a thread renews until the process ends."""

    objects: Objects
    """The store, tried again for a while."""
    impatient: Objects
    """The same store, for renewals: each is tried once, because the next follows soon."""
    lease_s: float
    clock: Callable[[], float] = time.monotonic
    also_renew: Callable[[], None] = lambda: None
    """Called after each round of renewals, in their thread."""
    _own: dict[str, Lease] = field(default_factory=dict)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _listed_s: float = float("-inf")
    _hosts: dict[str, str] = field(default_factory=dict)
    """The hosts of claims of other processes, by the names of the claims."""
    _lost: set[str] = field(default_factory=set)
    """Claims of other processes that ran out."""
    _repeated: set[str] = field(default_factory=set)
    """Trials that were taken over from another process."""
    _mutex: threading.RLock = field(default_factory=threading.RLock)
    _thread: threading.Thread | None = None

    def take(self, trial_id: str) -> Lease | None:
        """Claim a trial; return None if another process holds it.

        Raises:
            StorageError: The store cannot be reached for too long.
        """
        self._start_renewing()
        if self.clock() - self._listed_s > _LOOK_AGAIN_S:
            self._look(self.objects)
        generation = self._latest(trial_id)
        if generation and not self._has_run_out(claim_name(trial_id, generation)):
            return None
        if generation:
            self._repeated.add(trial_id)
            self._lost.add(claim_name(trial_id, generation))
        lease = Lease(trial_id=trial_id, generation=generation + 1, token=secrets.token_hex(8), renewed_s=self.clock())
        if not self.objects.create(lease.name, lease.content):
            self._seen[lease.name] = _Seen(stamp="", since_s=self.clock())
            return None
        with self._mutex:
            self._own[trial_id] = lease
        return lease

    def is_held(self, lease: Lease) -> bool:
        """Return whether a lease still is this process's, which it then is for at least another half of `lease_s`.

        Raises:
            StorageError: The store cannot be reached for too long.
        """
        if self.clock() - lease.renewed_s > self.lease_s / 2:
            self._renew(lease, self.objects)
        listed = _claims(self.objects.list(f"{CLAIMS}{lease.trial_id}."))
        return not lease.lost and max(listed, default="") == lease.name

    def end(self, lease: Lease) -> None:
        """Give a trial back: remove its claims, the earliest first.

        Raises:
            StorageError: The store cannot be reached for too long; the claim runs out by itself.
        """
        with self._mutex:
            self._own.pop(lease.trial_id, None)
        for name in sorted(_claims(self.objects.list(f"{CLAIMS}{lease.trial_id}."))):
            if name <= lease.name:
                self.objects.remove(name)
                self._seen.pop(name, None)

    def remove_abandoned(self, settled: Collection[str]) -> None:
        """Remove the claims that nobody will end: those of dead processes of this machine, and old ones of `settled`.

        A process that is killed after it has published a record leaves a claim that nobody needs to take over.

        Args:
            settled: Trials that do not run again.

        Raises:
            StorageError, OSError: The store cannot be reached now; what is left runs out by itself.
        """
        self._look(self.impatient)
        with self._mutex:
            own = {lease.name for lease in self._own.values()}
        for name in sorted(self._seen.keys() - own):
            is_old = self.clock() - self._seen[name].since_s >= self.lease_s
            if (is_old and _parts(name)[0] in settled) or self._is_of_a_dead_process(name):
                self.impatient.remove(name)
                self._seen.pop(name, None)

    def other_machines(self) -> OtherMachines:
        """Return what other processes do, as the last list of claims shows it; nothing is asked for."""
        with self._mutex:
            own = set(self._own)
        now_s, running = self.clock(), {}
        latest: dict[str, tuple[int, str, _Seen]] = {}
        for name, seen in list(self._seen.items()):
            trial_id, generation = _parts(name)
            if generation > latest.get(trial_id, (0, "", seen))[0]:
                latest[trial_id] = (generation, name, seen)
        for trial_id, (_, name, seen) in latest.items():
            if trial_id in own:
                continue
            if now_s - seen.since_s < self.lease_s:
                running[trial_id] = self._hosts.get(name, "")
            else:
                self._lost.add(name)
        return OtherMachines(running=running, lost=len(self._lost), repeated=len(self._repeated))

    def holders(self) -> dict[str, Holder]:
        """List the claims of all processes, and return who holds each trial.

        Raises:
            StorageError: The store cannot be reached for too long.
        """
        self._look(self.objects)
        self._read_hosts()
        found: dict[str, Holder] = {}
        for name in list(self._seen):
            trial_id, generation = _parts(name)
            if trial_id not in found or found[trial_id].generation < generation:
                found[trial_id] = Holder(generation=generation, host=self._hosts.get(name, ""))
        return found

    def renew_all(self) -> None:
        """Renew all claims once. What cannot be reached now is renewed the next time."""
        with suppress(StorageError, OSError):
            self._look(self.impatient)
            with self._mutex:
                own = list(self._own.values())
            for lease in own:
                if self._latest(lease.trial_id) > lease.generation:
                    lease.lost = True
                else:
                    self._renew(lease, self.impatient)
            self._read_hosts()
            self.also_renew()

    def _renew(self, lease: Lease, objects: Objects) -> None:
        # The lock, because a renewal after the end would leave a claim that nobody holds.
        with self._mutex:
            if self._own.get(lease.trial_id) is lease and not lease.lost:
                asked_s = self.clock()
                lease.renewals += 1
                objects.write(lease.name, lease.content)
                lease.renewed_s = asked_s

    def _look(self, objects: Objects) -> None:
        """List all claims, and keep since when each has not changed."""
        asked_s = self.clock()
        listed, before = _claims(objects.list(CLAIMS)), self._seen
        found = {}
        for name, stamp in listed.items():
            known = before.get(name)
            is_same = known is not None and known.stamp in ("", stamp)
            found[name] = _Seen(stamp=stamp, since_s=known.since_s if is_same and known else asked_s)
        self._seen, self._listed_s = found, asked_s
        for trial_id, generation in map(_parts, found):
            if generation > 1:
                self._repeated.add(trial_id)
                self._lost.add(claim_name(trial_id, generation - 1))

    def _read_hosts(self) -> None:
        """Read who holds claims that are new; the content of a claim names its holder."""
        with self._mutex:
            own = {lease.name for lease in self._own.values()}
        self._hosts = {name: host for name, host in self._hosts.items() if name in self._seen}
        new = [name for name in self._seen if name not in self._hosts and name not in own]
        for name, content in self.impatient.read_many(new[:_HOSTS_AT_ONCE]).items():
            self._hosts[name] = _host(content)

    def _latest(self, trial_id: str) -> int:
        """Return the latest generation of a trial's claims; 0 without one."""
        start = f"{CLAIMS}{trial_id}."
        return max((_parts(name)[1] for name in list(self._seen) if name.startswith(start)), default=0)

    def _has_run_out(self, name: str) -> bool:
        seen = self._seen.get(name)
        if seen is None or self.clock() - seen.since_s >= self.lease_s:
            return True
        return self._is_of_a_dead_process(name)

    def _is_of_a_dead_process(self, name: str) -> bool:
        """Return whether a claim is of a process of this machine that has ended: nobody needs to wait for it."""
        content = self.objects.read(name)
        try:
            holder = json.loads(content or b"{}")
            return bool(holder.get("place") == host_place() and not process_runs(int(holder["pid"])))
        except (ValueError, KeyError, TypeError, AttributeError):
            return False

    def _start_renewing(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_renewing, name="leases", daemon=True)
            self._thread.start()

    def _keep_renewing(self) -> None:
        while True:
            time.sleep(self.lease_s / RENEWALS)
            self.renew_all()
