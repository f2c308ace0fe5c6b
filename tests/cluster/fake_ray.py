"""Stands for the package ray: actors are objects, and an answer is ready when the test says so."""

import sys
from types import ModuleType


class RayError(Exception):
    """Raised for an actor that was lost."""


class RayTaskError(RayError):
    """Raised for an error of the actor's code."""


class Reference:
    """A value that may be ready, or an error."""

    def __init__(self, value):
        self.value, self.ready = value, True


class Method:
    def __init__(self, actor, name):
        self.actor, self.name = actor, name

    def remote(self, *args):
        return self.actor.ray.answer(self.actor, self.name, args)


class Actor:
    def __init__(self, ray, options, gpus):
        self.ray, self.options, self.gpus = ray, options, gpus
        self._actor_id = len(ray.actors)
        self.node, self.run = Method(self, "node"), Method(self, "run")


class ActorClass:
    def __init__(self, ray, options=None):
        self.ray, self.given = ray, options

    def __call__(self, slot):
        return self

    def options(self, **options):
        return ActorClass(self.ray, options)

    def remote(self, *, gpus):
        actor = Actor(self.ray, self.given, gpus)
        self.ray.actors.append(actor)
        return actor


class FakeRay(ModuleType):
    """The parts of ray that slots use."""

    def __init__(self):
        super().__init__("ray")
        self.alive, self.actors, self.killed = [], [], []
        self.answer = lambda actor, name, args: None
        self.connections = []

    def init(self, **options):
        self.connections.append(options["address"])

    def shutdown(self):
        self.connections.append(None)

    def nodes(self):
        return [{"Alive": True, "Resources": resources} for resources in self.alive]

    def remote(self, *args, **options):
        return ActorClass(self)

    def wait(self, references, *, num_returns, timeout):
        ready = [each for each in references if each.ready]
        return ready, [each for each in references if not each.ready]

    def get(self, reference):
        if isinstance(reference.value, Exception):
            raise reference.value
        return reference.value

    def kill(self, actor):
        self.killed.append(actor)


def install(monkeypatch):
    """Put a new one in the place of the package, and return it."""
    fake = FakeRay()
    exceptions, scheduling = ModuleType("ray.exceptions"), ModuleType("ray.util.scheduling_strategies")
    exceptions.RayError, exceptions.RayTaskError = RayError, RayTaskError
    scheduling.NodeAffinitySchedulingStrategy = dict
    modules = {"ray": fake, "ray.exceptions": exceptions, "ray.util": ModuleType("ray.util")}
    for name, module in {**modules, "ray.util.scheduling_strategies": scheduling}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "profiler.cluster.ray_cluster", raising=False)
    return fake
