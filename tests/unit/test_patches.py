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


def test_what_is_suspended_is_put_back_and_can_be_made_again() -> None:
    instance, patches = Child(), Patches()
    patches.set(instance, "method", lambda: "shadow")
    patches.set(Child, "other", 6)
    for _ in range(2):
        patches.suspend()
        assert (instance.method(), vars(instance), hasattr(Child, "other"), len(patches)) == ("base", {}, False, 0)
        assert patches.resume()
        assert (instance.method(), vars(Child)["other"]) == ("shadow", 6)
    patches.restore()
    assert (vars(instance), hasattr(Child, "other")) == ({}, False)
    assert not patches.resume()


def test_what_is_restored_while_suspended_is_gone_for_good() -> None:
    instance, patches = Child(), Patches()
    patches.set(instance, "method", lambda: "shadow")
    patches.suspend()
    patches.restore()
    assert not patches.resume()
    assert instance.method() == "base"
