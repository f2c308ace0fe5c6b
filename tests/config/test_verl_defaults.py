"""verl's defaults are a packaged file: what is read of it is what its generated configurations state."""

import hashlib

from profiler.config.verl.keys import FSDP_DEFAULTS, MEGATRON_DEFAULTS


def test_defaults_by_hand():
    assert (len(FSDP_DEFAULTS), len(MEGATRON_DEFAULTS)) == (432, 485)
    for defaults in (FSDP_DEFAULTS, MEGATRON_DEFAULTS):
        assert defaults["actor_rollout_ref.actor.optim.lr"] == 1e-6
        assert defaults["actor_rollout_ref.actor.optim.betas"] == [0.9, 0.999]
        assert defaults["actor_rollout_ref.actor.ppo_micro_batch_size"] is None
    assert "actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size" not in FSDP_DEFAULTS


def test_no_default_and_no_type_has_changed():
    """Of verl 0.8.0.dev. A new release has another digest, and its version in `VERL_VERSION`."""
    found = repr((list(FSDP_DEFAULTS.items()), list(MEGATRON_DEFAULTS.items())))
    assert hashlib.sha256(found.encode()).hexdigest().startswith("dc0f0fdc91b5")
