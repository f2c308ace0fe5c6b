"""verl's defaults are a packaged file: what is read of it is what its generated configurations state."""

import hashlib

import pytest

from profiler.config.verl.keys import DEFAULTS, FSDP_DEFAULTS, MEGATRON_DEFAULTS
from profiler.domain.verl import Release


def test_defaults_by_hand():
    assert (len(FSDP_DEFAULTS), len(MEGATRON_DEFAULTS)) == (432, 485)
    for defaults in (FSDP_DEFAULTS, MEGATRON_DEFAULTS):
        assert defaults["actor_rollout_ref.actor.optim.lr"] == 1e-6
        assert defaults["actor_rollout_ref.actor.optim.betas"] == [0.9, 0.999]
        assert defaults["actor_rollout_ref.actor.ppo_micro_batch_size"] is None
    assert "actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size" not in FSDP_DEFAULTS


def test_defaults_of_a_later_release_by_hand():
    fsdp, megatron = DEFAULTS[Release.V0_9_1]
    assert (len(fsdp), len(megatron)) == (658, 732)
    assert fsdp["critic.fsdp.model_dtype"] == "fp32" and "critic.model.fsdp_config.model_dtype" not in fsdp
    assert fsdp["actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"] == 2048
    assert fsdp["critic.model.use_remove_padding"] is True is megatron["actor_rollout_ref.model.use_remove_padding"]
    assert megatron["actor_rollout_ref.ref.megatron.param_offload"] is None
    assert "actor_rollout_ref.actor.megatron.grad_offload" not in megatron


@pytest.mark.parametrize(("release", "digest"), [(Release.V0_8, "dc0f0fdc91b5"), (Release.V0_9_1, "3fa581a66443")])
def test_no_default_and_no_type_has_changed(release, digest):
    """Of the versions in `VERSIONS`. A new release has another digest."""
    fsdp, megatron = DEFAULTS[release]
    found = repr((list(fsdp.items()), list(megatron.items())))
    assert hashlib.sha256(found.encode()).hexdigest().startswith(digest)
