"""A script on the simulated GPU: what it sees of the card, and what is recorded of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GenerationConfig, PreTrainedModel, Qwen2Config
from transformers.utils import is_torch_tf32_available

from profiler.allocator import parse_alloc_conf, replay_on_card
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Category, Phase
from profiler.scripts.hooks import watched
from profiler.scripts.phase_watch import PhaseWatch
from profiler.simulation.script.session import SimulatedScript
from profiler.substitutes import substitutes

GPU = KNOWN_GPUS["a100-40gb"]


@contextmanager
def script() -> Iterator[SimulatedScript]:
    """The body is a script."""
    session = SimulatedScript(GPU, alloc_conf="", add_model=lambda _: None, add_optimizer=lambda _: None)
    with substitutes(), session.running(), watched(PhaseWatch(session, steps=None)):
        yield session


def test_the_card_is_the_one_that_was_named() -> None:
    with script():
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_name(0) == GPU.title
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.get_device_properties("cuda").total_memory == GPU.memory_bytes
        assert torch.cuda.is_bf16_supported()
        assert is_torch_tf32_available()
        torch.cuda.manual_seed_all(1)
        torch.cuda.synchronize()
        assert torch.accelerator.is_available()
        assert torch.zeros(1, device=torch.accelerator.current_accelerator()).is_cuda
        rows = torch.utils.data.TensorDataset(torch.arange(4))
        assert [len(part) for (part,) in torch.utils.data.DataLoader(rows, batch_size=2, pin_memory=True)] == [2, 2]
    assert not torch.cuda.is_available()


@pytest.mark.parametrize("name", ["Stream", "Event", "CUDAGraph", "graph"])
def test_what_is_a_class_of_torch_is_one_on_the_card(name: str) -> None:
    """Libraries annotate with it: ``stream: torch.cuda.Stream | None``."""
    with script():
        assert isinstance(getattr(torch.cuda, name), type)
        assert getattr(torch.cuda, name) | None
        assert isinstance(torch.cuda.Stream(), torch.cuda.Stream)
        assert isinstance(torch.cuda.Event(enable_timing=True), torch.cuda.Event)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda", 0)])
def test_every_name_of_the_card_is_the_card(device: object) -> None:
    with script():
        for tensor in (
            torch.zeros(3, device=device),
            torch.zeros(3).to(device),
            torch.zeros(3).to(device=device),
            torch.tensor([1.0, 2.0], device=device),
            torch.nn.Linear(2, 2, device=device).weight,
            torch.nn.Linear(2, 2).to(device).weight,
        ):
            assert tensor.is_cuda
        assert torch.zeros(3).cuda().is_cuda
        assert not torch.zeros(3).is_cuda
        assert not torch.zeros(3).to(torch.float16, True).is_cuda


def test_a_tensor_gets_data_of_another_device() -> None:
    """peft's OLoRA does so before it moves its adapter to the card."""
    with script() as session:
        on_host = torch.nn.Linear(4, 4, bias=False).weight
        holder = [on_host]
        on_host.data = torch.tensor([[2.0, 3.0]], device="cuda")
        assert holder[0].is_cuda
        assert isinstance(on_host, torch.nn.Parameter)
        assert on_host.requires_grad
        assert on_host.tolist() == [[2.0, 3.0]]
        on_host.data = torch.ones(3)
        assert not on_host.is_cuda
    assert session.recorder.finished().sizes_bytes == (8,)


def test_a_number_of_the_card_is_formatted() -> None:
    with script():
        assert f"{torch.tensor(2.5, device='cuda'):.2f}" == "2.50"
        assert f"{torch.ones(2, 2, device='cuda').sum():4.1f}" in (" 4.0", " 1.0")
        assert "meta" in f"{torch.ones(2, device='cuda')}"


def test_values_of_the_host_stay_known_on_the_card() -> None:
    with script() as session:
        tensor = torch.tensor([3, 5], device="cuda")
        assert tensor.sum().item() == 8
        assert torch.as_tensor([3, 5], device="cuda").tolist() == [3, 5]
        assert (tensor.cpu() + 1).tolist() == [4, 6]
    assert session.reads.phrases() == ()


def test_a_value_that_is_not_known_is_noted_with_its_line() -> None:
    with script() as session:
        assert torch.rand(3, device="cuda").sum().item() == 1.0
    assert "float at test_script_session.py:" in " ".join(session.reads.phrases())


def test_counters_are_those_of_the_allocator() -> None:
    with script():
        assert torch.cuda.memory_allocated() == 0
        first = torch.empty(1000, device="cuda")
        second = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 4096 + (20 << 20)
        assert torch.cuda.memory_reserved() == (2 << 20) + (20 << 20)
        del second
        assert torch.cuda.memory_allocated() == 4096
        assert torch.cuda.max_memory_allocated() == 4096 + (20 << 20)
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 4096
        free, total = torch.cuda.mem_get_info()
        assert (total, free < total) == (GPU.memory_bytes, True)
        assert first.is_cuda


def test_parameters_keep_their_identity_when_a_module_moves() -> None:
    """An optimizer that a script makes before it moves its model trains the model."""
    with script():
        model = AutoModelForCausalLM.from_pretrained("tiny")
        before = list(model.parameters())
        model.cuda()
        assert all(one is other and one.is_cuda for one, other in zip(before, model.parameters(), strict=True))
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_device_map_puts_a_model_on_the_card_and_loading_takes_nothing_else() -> None:
    with script() as session:
        model = AutoModelForCausalLM.from_pretrained("tiny", device_map="auto")
        assert model.lm_head.weight.is_cuda
    trace = session.recorder.finished()
    tensors = [tensor.nbytes for tensor in (*model.parameters(), *model.buffers())]
    # The memory of the whole model at once, which transformers takes first, and its tensors.
    assert sorted(trace.sizes_bytes) == sorted([sum(tensors), *tensors])
    peak = replay_on_card(trace, capacity_bytes=None, config=parse_alloc_conf("")).peak_allocated_bytes
    assert peak == sum(-(-size // 512) * 512 for size in tensors)


def tiny_qwen(folder: Path, **options: object) -> PreTrainedModel:
    """A model of the configuration in `folder`, as a script loads it."""
    Qwen2Config(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=512,
    ).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options)


@pytest.mark.parametrize("device_map", [None, {"": 0}])
def test_weights_in_four_bits_are_quantised_one_by_one(tmp_path: Path, device_map: object) -> None:
    with script() as session:
        options = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
        model = tiny_qwen(tmp_path, device_map=device_map, quantization_config=BitsAndBytesConfig(**options))
        held = torch.cuda.memory_allocated()
        model.to("cuda")
        assert torch.cuda.memory_allocated() == held
        layer = model.model.layers[0].mlp.up_proj
        with torch.no_grad():
            model(input_ids=torch.ones(1, 8, dtype=torch.int64, device="cuda"))
    assert (layer.weight.shape, layer.weight.quant_state.shape) == ((128 * 256 // 2, 1), (256, 128))
    sizes = session.recorder.finished().sizes_bytes
    packed, absmax, nested = 128 * 256 // 2, 128 * 256 // 64, 4
    assert [sizes.count(each) >= 6 for each in (packed, absmax, nested)] == [True] * 3
    # Without quantisation the linear layers take 16 bits per weight.
    linear = 2 * (2 * 128 * 128 + 2 * 128 * 128 + 3 * 128 * 256)
    assert held < (2 * 512 * 128) * 2 + linear


def test_weights_in_eight_bits_are_refused(tmp_path: Path) -> None:
    with script(), pytest.raises(UnsupportedTrialError, match="weights in 8 bits of the script cannot be simulated"):
        tiny_qwen(tmp_path, device_map={"": 0}, quantization_config=BitsAndBytesConfig(load_in_8bit=True))


def test_inference_mode_takes_the_memory_of_a_pass_without_gradient() -> None:
    made = []
    for mode in (torch.no_grad, torch.inference_mode):
        with script() as session:
            layer = torch.nn.Linear(1024, 1024).to("cuda")
            rows = torch.ones(4, 8, 1024, device="cuda")
            with mode():
                hidden = layer(rows).reshape(32, 1024).to(torch.bfloat16)
                assert torch.ones(3, device="cuda").all().item() is True
                heads = hidden.view(1, 4, 32, 256)[:, :, :8]
                torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        made.append(session.recorder.finished().sizes_bytes)
    assert made[0] == made[1]
    assert {4 * 8 * 1024 * 4, 4 * 8 * 1024 * 2} < set(made[0])


def test_autocast_is_that_of_cuda() -> None:
    with script():
        layer, rows = torch.nn.Linear(4, 4, device="cuda"), torch.ones(2, 4, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert layer(rows).dtype is torch.bfloat16
        with torch.autocast("cuda"), torch.amp.autocast("cuda"):
            assert layer(rows).dtype is torch.float16
        with torch.cuda.amp.autocast(dtype=torch.bfloat16):
            assert layer(rows).dtype is torch.bfloat16
        assert layer(rows).dtype is torch.float32


def test_a_plain_loop_has_its_phases_and_categories() -> None:
    with script() as session:
        model = AutoModelForCausalLM.from_pretrained("tiny", dtype="float32").to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            ids = torch.randint(0, 512, (2, 16)).to("cuda")
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        trace = session.recorder.finished()
    found = replay_on_card(trace, capacity_bytes=None, config=parse_alloc_conf(""))
    assert list(found.phases) == [Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    states = sum(
        size
        for size, category, event in zip(
            trace.sizes_bytes, trace.categories, range(len(trace.sizes_bytes)), strict=True
        )
        if category is Category.OPTIMIZER_STATE and event + 1 in trace.events
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert states == 2 * 4 * parameters
    assert {"exp_avg of lm_head.weight", "exp_avg of model.embed_tokens.weight"} & set(trace.names.values())


def test_a_model_that_no_optimizer_trains_is_a_reference() -> None:
    """Scripts do not always freeze it."""
    with script() as session:
        model, reference = (torch.nn.Linear(64, 64).to("cuda") for _ in range(2))
        optimizer = torch.optim.SGD(model.parameters())
        (model(torch.ones(1, 64, device="cuda")) - reference(torch.ones(1, 64, device="cuda"))).sum().backward()
        optimizer.step()
        trace = session.recorder.finished()
    weights = [category for size, category in zip(trace.sizes_bytes, trace.categories, strict=True) if size == 64 * 256]
    assert weights == [Category.WEIGHTS, Category.REFERENCE, Category.GRADIENTS, Category.GRADIENTS]


@pytest.mark.parametrize("sampling", [True, False])
def test_completions_have_their_maximum_of_tokens(sampling: bool) -> None:
    """Whatever token ends a sequence: the one that is taken is an ordinary one."""
    with script() as session:
        model = AutoModelForCausalLM.from_pretrained("tiny").to("cuda")
        ids = torch.ones(2, 3, dtype=torch.int64).to("cuda")
        ending = GenerationConfig(max_new_tokens=5, do_sample=sampling, eos_token_id=[0, 1, 2], pad_token_id=0)
        assert model.generate(ids, generation_config=ending).shape == (2, 8)
    assert "where completions end" in session.reads.phrases()[0]


@pytest.mark.parametrize("call", [lambda: torch.cuda.CUDAGraph(), lambda: torch.distributed.init_process_group("nccl")])
def test_what_is_not_simulated_is_refused_by_name(call: object) -> None:
    with script(), pytest.raises(UnsupportedTrialError, match="cannot be simulated; backend=emulated runs it"):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("enabled", [True, False])
def test_no_step_of_a_scaler_is_skipped_and_the_assumption_is_noted(enabled: bool) -> None:
    with script() as session:
        layer = torch.nn.Linear(4, 4).cuda()
        optimizer, scaler = torch.optim.Adam(layer.parameters()), torch.amp.GradScaler("cuda", enabled=enabled)
        scaler.scale(layer(torch.ones(1, 4, device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert len(optimizer.state) == 2
    assert ("no step of a GradScaler is skipped" in " ".join(session.reads.phrases())) is enabled


def test_compilation_is_left_out_and_noted() -> None:
    with script() as session:
        model = torch.nn.Linear(2, 2)
        assert torch.compile(model) is model
        assert torch.compile(dynamic=True)(model) is model
    assert "torch.compile" in session.reads.phrases()[0]


def test_a_completion_is_not_ended_by_the_token_that_is_sampled() -> None:
    """The end of text is in the middle of the vocabulary, from where a token is looked for."""
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(**shape, num_key_value_heads=2, vocab_size=64, eos_token_id=[32, 33], pad_token_id=34)
    with script():
        model = AutoModelForCausalLM.from_config(config).to("cuda")
        ids = torch.ones(2, 4, dtype=torch.long, device="cuda")
        for sampled in (True, False):
            made = model.generate(ids, max_new_tokens=8, do_sample=sampled)
            assert made.shape == (2, 12)
            assert set(made[:, 4:].flatten().tolist()) == {35}
