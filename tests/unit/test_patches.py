"""Replaced attributes come back exactly as they were."""

from __future__ import annotations

from vime_otel.recorder.patches import Patches


class Base:
    def method(self) -> str:
        return "base"


class Child(Base):
    pass


def test_an_instance_is_shadowed_and_left_as_it_was() -> None:
    patches, instance = Patches(), Child()
    patches.set(instance, "method", lambda: "shadow")
    assert instance.method() == "shadow"
    patches.restore()
    assert instance.method() == "base"
    assert vars(instance) == {}


def test_an_instances_own_attribute_returns() -> None:
    instance = Child()
    own = instance.__dict__["method"] = lambda: "own"
    patches = Patches()
    patches.set(instance, "method", lambda: "shadow")
    patches.set(instance, "method", lambda: "second")
    patches.restore()
    assert vars(instance) == {"method": own}


def test_a_class_that_only_inherits_loses_the_shadow() -> None:
    patches = Patches()
    patches.set(Child, "method", lambda self: "shadow")
    assert (Child().method(), Base().method()) == ("shadow", "base")
    patches.restore()
    assert "method" not in vars(Child)
    assert Child().method() == "base"


def test_a_class_gets_its_own_function_back() -> None:
    original = vars(Base)["method"]
    patches = Patches()
    patches.set(Base, "method", lambda self: "shadow")
    patches.restore()
    assert vars(Base)["method"] is original


def test_restoring_twice_changes_nothing() -> None:
    patches, instance = Patches(), Child()
    patches.set(instance, "method", lambda: "shadow")
    patches.restore()
    vars(instance)["method"] = "mine"
    patches.restore()
    assert vars(instance) == {"method": "mine"}
