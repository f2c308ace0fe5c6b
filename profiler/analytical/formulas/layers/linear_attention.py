"""Linear attention by a gated delta rule, as transformers computes it in PyTorch, without kernels of other packages.

Counted in `Qwen3NextGatedDeltaNet`, `Qwen3_5GatedDeltaNet` and their `torch_chunk_gated_delta_rule` of transformers
5.23, which run where flash-linear-attention and causal-conv1d are not installed. The rule works in float32 on chunks of
64 tokens: P is the length of a row rounded up to chunks, C the number of chunks, n the heads of values, to which
queries and keys are repeated, d and e the widths of a head of keys and of values. Autocast narrows its products.
"""

from dataclasses import dataclass

from profiler.analytical.formulas.models.parameters import layers_of
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    element_bytes,
    linear_output_bytes,
    trains_everything,
)
from profiler.analytical.formulas.rollout import recurrent_state_bytes
from profiler.analytical.formulas.sizes.quantities import Count, Flag, both, either, larger, where, whole_units
from profiler.analytical.formulas.sizes.rounding import Block, block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
from profiler.domain.architectures.architecture import LinearAttention

_CHUNK = 64


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """The tensors of one call of the rule, in bytes."""

    linear: LinearAttention
    rows: Count
    """Rows times heads of values."""
    width: Count
    """Tokens of a row, padding included."""
    compute: Count
    """Bytes of one value that a matrix product returns."""
    block: Block

    @classmethod
    def of(cls, spec: TrialKeys, linear: LinearAttention, batch: Batch, *, compute: Count) -> "_Rule":
        rows = batch.rows * linear.num_value_heads
        return cls(linear=linear, rows=rows, width=batch.width, compute=compute, block=block_of(spec))

    @property
    def chunks(self) -> Count:
        return whole_units(self.width, _CHUNK)

    @property
    def keys(self) -> Count:
        """[rows, P, d] in float32, of queries or keys."""
        return self._padded(self.linear.key_head_dim)

    @property
    def values(self) -> Count:
        """[rows, P, e] in float32."""
        return self._padded(self.linear.value_head_dim)

    @property
    def pairs(self) -> Count:
        """[rows, C, 64, 64] in float32: one number per pair of tokens of a chunk."""
        return self._padded(_CHUNK)

    @property
    def numbers(self) -> Count:
        """[rows, P] in float32."""
        return self._padded(1)

    def _padded(self, dim: int) -> Count:
        return self.block(self.rows * self.chunks * _CHUNK * dim * FLOAT32_BYTES)

    @property
    def state(self) -> Count:
        """[rows, d, e] in float32."""
        return recurrent_state_bytes(self.linear, self.rows, FLOAT32_BYTES, self.block)

    def of_chunk(self, dim: int, element: Count) -> Count:
        """Return [rows, 64, dim]."""
        return self.block(self.rows * _CHUNK * dim * element)

    @property
    def narrow_state(self) -> Count:
        """The state in the compute type."""
        return recurrent_state_bytes(self.linear, self.rows, self.compute, self.block)

    @property
    def narrow_keys(self) -> Count:
        """Queries or keys of a chunk in the compute type."""
        return self.of_chunk(self.linear.key_head_dim, self.compute)

    @property
    def narrow_values(self) -> Count:
        """Values of a chunk in the compute type."""
        return self.of_chunk(self.linear.value_head_dim, self.compute)

    @property
    def wide_values(self) -> Count:
        """Values of a chunk in float32."""
        return self.of_chunk(self.linear.value_head_dim, FLOAT32_BYTES)

    @property
    def attended(self) -> Count:
        """What a chunk saves of its output: the attention inside of it and its values, cast."""
        return self.of_chunk(_CHUNK, self.compute) + self.narrow_values

    @property
    def read(self) -> Count:
        """What a chunk saves of one product with the state: the state and queries or keys, cast."""
        return self.narrow_state + self.narrow_keys


def rule_saved_bytes(spec: TrialKeys, linear: LinearAttention, batch: Batch) -> Count:
    """Return what the rule saves, with the convolution and the gates before it.

    - Before: the input of the convolution and its output before SiLU, one token per row and value of its kernel longer
      but one; a number per token and head of the learning rate, and two of the decay.
    - Of all chunks: queries and keys before their norms and padded, values padded; keys times the learning rate; the
      pairwise decays, the system and both products in the compute type, with casts of their factors; both solutions.
    - Of each chunk: the state twice and what is read from it, cast; the attention inside and the values, cast. Of each
      but the last also keys and values that are written, and the state.

    By hand, one row of 8 tokens, 1 head of keys of 4, 2 of values of 3, a kernel of 4, bfloat16: 692 B before, 640 B of
    queries and keys, and of one chunk 9,728 + 98,304 + 4,096 + 3,584 + 17,248 B: 134,292 B.
    """
    compute = element_bytes(spec).compute
    rule, block = _Rule.of(spec, linear, batch, compute=compute), block_of(spec)
    positions, heads = batch.positions, linear.num_value_heads
    convolved = batch.rows * (batch.width + linear.conv_kernel_dim - 1) * linear.conv_width
    before = block(positions * linear.conv_width * compute) + block(convolved * compute)
    before = before + block(positions * heads * compute) + 2 * block(positions * heads * FLOAT32_BYTES)
    raw = 2 * block(rule.rows * rule.width * linear.key_head_dim * FLOAT32_BYTES)
    raw = raw + 2 * block(rule.rows * rule.width * FLOAT32_BYTES)
    padded = 2 * rule.keys + rule.values + 4 * rule.numbers + rule.keys
    intra = 2 * rule.pairs + 2 * block(rule.rows * rule.chunks * _CHUNK * _CHUNK * compute)
    casts = 4 * block(rule.rows * rule.chunks * _CHUNK * linear.key_head_dim * compute)
    solved = rule.values + rule.keys
    each = rule.chunks * (2 * rule.narrow_state + rule.attended)
    earlier = (rule.chunks - 1) * (3 * rule.narrow_keys + rule.narrow_values + rule.state)
    return before + raw + padded + intra + casts + solved + each + earlier


def gated_norm_saved_bytes(spec: TrialKeys, linear: LinearAttention, positions: Count, *, keeps_output: Flag) -> Count:
    """Return what the gated norm after the rule saves.

    Its input in float32 and one number per head, the product with its weight, the gate in float32 before and after its
    activation; if the weight is trained, the normalised input; if the next layer keeps its input, the output.

    By hand, T = 10, 2 heads of 3, bfloat16, full: 10 x (6 x (3 x 4 + 3 x 2) + 2 x 4) = 1,160 B.

    Source: `Qwen3NextRMSNormGated` in transformers.
    """
    block, compute = block_of(spec), element_bytes(spec).compute
    wide, narrow = (block(positions * linear.value_width * element) for element in (FLOAT32_BYTES, compute))
    trained = narrow if trains_everything(spec) else 0
    numbers = block(positions * linear.num_value_heads * FLOAT32_BYTES)
    return 3 * wide + numbers + narrow + trained + where(keeps_output, narrow, 0)


def linear_saved_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, keeps_output: Flag) -> Count:
    """Return what linear attention saves between its linear layers; 0 for other attention.

    By hand, as in `rule_saved_bytes`, full: 134,292 + 8 x 116 = 135,220 B.
    """
    linear = architecture.linear
    if linear is None:
        return 0
    gated = gated_norm_saved_bytes(spec, linear, batch.positions, keeps_output=keeps_output)
    return rule_saved_bytes(spec, linear, batch) + gated


def _names_bytes(
    spec: TrialKeys, architecture: DecoderShape, linear: LinearAttention, batch: Batch, given: Count
) -> Count:
    """Return what names of the layer's forward refer to until it returns: the gate, and what the convolution made.

    A product of all of them, of which queries, keys, values and the gate are copies, is one of these too. With a mask
    the layer's input is there twice, as `apply_mask_to_padding_states` in transformers returns it, and as it was.
    """
    block, positions = block_of(spec), batch.positions
    masked = where(batch.has_mask, block(positions * architecture.hidden_size * given), 0)
    found = masked + block(positions * linear.value_width * given) + block(positions * linear.conv_width * given)
    if layers_of(architecture).joins_linear_inputs:
        found = found + block(positions * (linear.conv_width + linear.value_width) * given)
    return found + 3 * block(positions * linear.num_value_heads * given)


def linear_without_gradient_bytes(
    spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, autocast: Flag
) -> Count:
    """Return what linear attention needs at the end of its rule if it saves nothing; 0 for other attention.

    - Of keys, five tensors: queries and keys times their decays, keys times the learning rate, these times the decay,
      and their solution.
    - Of values five: these, times the learning rate, their solution, the output, and its copy with the chunks joined.
      Or before that copy, if it is more, the state, the decayed one, what is written, and their sum; or before all
      chunks the first state and the queries before their decay. In generation the state is counted with the cache.
    - Of pairs three: the decays, the system and the attention inside. Of the last chunk two of values.

    By hand, as in `rule_saved_bytes`: 116,224 + 2,304 + 1,536 + 416 B = 120,480 B.
    """
    linear = architecture.linear
    if linear is None:
        return 0
    given = linear_output_bytes(spec, autocast=autocast)
    # Its inputs are float32, which only autocast narrows; in full fine-tuning it wraps generation too.
    narrows = both(spec.mixed_precision, either(autocast, trains_everything(spec)))
    compute = where(narrows, element_bytes(spec).compute, FLOAT32_BYTES)
    rule = _Rule.of(spec, linear, batch, compute=compute)
    made = 5 * rule.keys + 4 * rule.values + 3 * rule.pairs + 3 * rule.numbers
    # Only generation has a cache, and no autocast around it.
    states = where(autocast, 3, 2) * rule.state + rule.narrow_state
    at_end = larger(rule.values, states) + rule.wide_values + rule.narrow_values
    made = made + larger(at_end, rule.keys + where(autocast, rule.state, 0))
    return made + _names_bytes(spec, architecture, linear, batch, given)


def linear_forward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, keeps_output: Flag) -> Count:
    """Return what linear attention needs in training in addition to what it saves, its gated norm included.

    The larger of two: at the end of the rule or of its last chunk, as without gradient, less what is saved, when the
    norm has saved nothing; or at the end of the norm, the output of the rule and the product in float32.

    By hand, as in `rule_saved_bytes`, full: 46,416 - 928 + 416 B = 45,904 B.
    """
    linear = architecture.linear
    if linear is None:
        return 0
    block, positions = block_of(spec), batch.positions
    compute = element_bytes(spec).compute
    rule = _Rule.of(spec, linear, batch, compute=compute)
    in_loop = 3 * rule.state + rule.narrow_state + rule.narrow_keys + rule.narrow_values
    unsaved = 3 * rule.keys + 2 * rule.values + larger(rule.values, in_loop)
    unsaved = unsaved + rule.pairs + rule.wide_values + rule.narrow_values
    at_rule = unsaved - gated_norm_saved_bytes(spec, linear, positions, keeps_output=keeps_output)
    at_norm = block(positions * linear.value_width * (FLOAT32_BYTES + compute))
    return larger(at_rule, at_norm) + _names_bytes(spec, architecture, linear, batch, linear_output_bytes(spec))


def linear_backward_bytes(spec: TrialKeys, architecture: DecoderShape, batch: Batch, *, keeps_output: Flag) -> Count:
    """Return the peak of the backward of linear attention in addition to what it saves; 0 for other attention.

    The larger of two: at the product of the gated norm, the gradients of the product and of both factors in float32; or
    in the chunk before the last, the gradients of all chunks: of the output twice, of both solutions, of queries, of
    keys and of the attention inside, with those of the chunk's output, values and state. By then the norm and the last
    chunk are freed. A row of a single chunk has no gradients of keys that are written, and of the output only one.

    By hand, as in `rule_saved_bytes`, full: 96 + 39,936 - 928 B = 39,104 B.
    """
    linear = architecture.linear
    if linear is None:
        return 0
    block, positions, compute = block_of(spec), batch.positions, element_bytes(spec).compute
    rule = _Rule.of(spec, linear, batch, compute=compute)
    output = block(positions * linear.value_width * compute)
    at_norm = 3 * block(positions * linear.value_width * FLOAT32_BYTES) - where(keeps_output, output, 0)
    freed = gated_norm_saved_bytes(spec, linear, positions, keeps_output=keeps_output)
    chunk = 3 * rule.wide_values + rule.narrow_values + rule.state
    last = rule.attended + 2 * rule.read + rule.narrow_keys + rule.narrow_values + rule.state
    several = 3 * (rule.keys + rule.values) + rule.pairs + chunk - last
    alone = 2 * (rule.keys + rule.values) + rule.pairs
    in_loop = output + where(rule.chunks > 1, several, alone) - freed
    return larger(at_norm, in_loop)


def decoded_state_bytes(spec: TrialKeys, linear: LinearAttention) -> Count:
    """Return what a layer needs to decode a token per sequence: three states in addition to that in the cache.

    The decayed state, what is written, and their sum. By hand, Qwen3-Next, 16 sequences: 3 x 33,554,432 B.

    Source: `torch_recurrent_gated_delta_rule` in transformers.
    """
    rows = spec.generation_batch_size * linear.num_value_heads
    return 3 * recurrent_state_bytes(linear, rows, FLOAT32_BYTES, block_of(spec))
