#include "tensors.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/nan_to_num.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <vector>

namespace emulated {

bool on_card(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() && tensor.layout() == at::kStrided && tensor.has_storage() &&
      !tensor.is_quantized() && tensor.numel() > 0;
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  auto options = tensor.options().device(at::kCPU).requires_grad(false);
  if (!on_card(tensor)) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

void give(const at::Tensor& result, const at::Tensor& computed) {
  if (!on_card(result) || !computed.defined() || result.numel() != computed.numel()) return;
  auto target = on_cpu(result);
  if (target.data_ptr() == computed.data_ptr()) return;  // computed in place
  target.copy_(target.sizes() == computed.sizes() ? computed : computed.reshape(target.sizes()));
}

// ---- runs of bytes: a tensor with strides is several of them ------------------------------------------------------------

namespace {

constexpr int64_t MOST_RUNS = 4096;

struct Dimension {
  int64_t size, stride;
};

// Dimensions with more than one element, without those that repeat an element, from the longest stride to the shortest.
std::vector<Dimension> dimensions_of(const at::Tensor& tensor) {
  std::vector<Dimension> found;
  for (int64_t i = 0; i < tensor.dim(); i++) {
    if (tensor.size(i) > 1 && tensor.stride(i) != 0) found.push_back({tensor.size(i), tensor.stride(i)});
  }
  std::sort(found.begin(), found.end(), [](const Dimension& a, const Dimension& b) { return a.stride > b.stride; });
  return found;
}

// Bytes from the first element to the last.
size_t extent(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); i++) last += (tensor.size(i) - 1) * tensor.stride(i);
  return static_cast<size_t>(last + 1) * tensor.itemsize();
}

// Call `visit(address, bytes)` for each run of adjacent bytes. False if there are too many; nothing was visited then.
template <typename Visit>
bool each_run(const at::Tensor& tensor, Visit visit) {
  const size_t item = tensor.itemsize();
  auto outer = dimensions_of(tensor);
  int64_t run = 1, runs = 1;
  while (!outer.empty() && outer.back().stride == run) {
    run *= outer.back().size;
    outer.pop_back();
  }
  for (const auto& dimension : outer) {
    runs *= dimension.size;
    if (runs > MOST_RUNS) return false;
  }
  const char* start = static_cast<const char*>(tensor.data_ptr());
  for (int64_t i = 0; i < runs; i++) {
    int64_t rest = i, offset = 0;
    for (auto dimension = outer.rbegin(); dimension != outer.rend(); ++dimension) {
      offset += rest % dimension->size * dimension->stride;
      rest /= dimension->size;
    }
    visit(start + offset * static_cast<int64_t>(item), static_cast<size_t>(run) * item);
  }
  return true;
}

}  // namespace

// ---- what is known ---------------------------------------------------------------------------------------------------------

const char* unknown(const at::Tensor& tensor) {
  if (!on_card(tensor)) return nullptr;
  const char* producer = em_values_producer(tensor.data_ptr(), extent(tensor));
  if (!producer || tensor.is_non_overlapping_and_dense()) return producer;
  const char* of_runs = nullptr;
  bool visited = each_run(tensor, [&](const char* address, size_t bytes) {
    if (!of_runs) of_runs = em_values_producer(address, bytes);
  });
  return visited ? of_runs : producer;
}

void note_right(const at::Tensor& tensor) {
  if (on_card(tensor)) each_run(tensor, [](const char* address, size_t bytes) { em_values_right(address, bytes); });
}

// Who made it is kept of what the host may read: integers, booleans, and few floats.
void note_unknown(const at::Tensor& tensor, const char* producer) {
  if (!on_card(tensor)) return;
  if (tensor.numel() > (is_whole(tensor) ? MOST_WHOLE : MOST_ANY)) return note_allocated(tensor);
  if (!each_run(tensor, [&](const char* address, size_t bytes) { em_values_unknown(address, bytes, producer); }))
    note_allocated(tensor);
}

void note_allocated(const at::Tensor& tensor) {
  if (on_card(tensor)) em_values_forget(tensor.data_ptr(), extent(tensor));
}

// ---- values that are not computed ------------------------------------------------------------------------------------------

void set_zero(const at::Tensor& tensor) {
  if (on_card(tensor) && tensor.is_non_overlapping_and_dense()) em_zero(tensor.data_ptr(), tensor.nbytes());
}

void set_all(const at::Tensor& tensor, bool value) {
  if (!on_card(tensor)) return;
  if (value && tensor.numel() > MOST_WHOLE) return note_allocated(tensor);  // ones would take memory of the host
  if (value) {
    on_cpu(tensor).fill_(1);
  } else {
    set_zero(tensor);
  }
  note_right(tensor);
}

void replace_not_finite(const at::Tensor& tensor) {
  if (on_card(tensor) && tensor.is_floating_point()) {
    auto bytes = on_cpu(tensor);
    bytes.copy_(at::nan_to_num(bytes, 0.0, 0.0, 0.0));
  }
}

// ---- draws --------------------------------------------------------------------------------------------------------------------

// Tokens that mean something to a program, such as ends of text, and sizes of vocabularies: profiler/seams/special_tokens.py.
static std::mutex special_lock;
static std::set<int64_t> special;
static std::set<int64_t> vocabularies;
static std::atomic<void (*)()> on_draw{nullptr};

// More choices than a mixture has experts are tokens, whether or not a vocabulary of their number is known.
constexpr int64_t MOST_EXPERTS = 4096;

// The vocabulary that is chosen from, for each beam of a search if there are several; 0: no tokens are.
static int64_t vocabulary_of(int64_t choices) {
  int64_t found = choices > MOST_EXPERTS ? choices : 0;
  for (int64_t size : vocabularies) {
    if (size > 1 && choices % size == 0) found = size;
  }
  return found;
}

// The first choice from `index` on that is no special token; `index` if there is none.
static int64_t ordinary(int64_t index, int64_t choices, int64_t vocabulary) {
  if (!vocabulary) return index;
  for (int64_t tried = 0; tried < vocabulary; tried++) {
    const int64_t next = (index + tried) % choices;
    if (!special.count(next % vocabulary)) return next;
  }
  return index;
}

// Before the lock is taken: the callback sets tokens.
static void announce_draw() {
  if (auto* callback = on_draw.load()) callback();
}

void draw_uniformly(const at::Tensor& indices, int64_t choices) {
  static std::atomic<uint32_t> count{1};
  announce_draw();
  const std::lock_guard<std::mutex> guard(special_lock);
  const int64_t vocabulary = vocabulary_of(choices);
  if (vocabulary) em_did(EM_GENERATES);
  auto* values = static_cast<int64_t*>(indices.data_ptr());
  for (int64_t i = 0; i < indices.numel(); i++) {
    const uint32_t scattered = count++ * 2654435761u;  // a multiplier that spreads consecutive numbers evenly
    values[i] = ordinary(scattered % choices, choices, vocabulary);
  }
}

void draw_balanced(const at::Tensor& indices, int64_t dimension, int64_t choices) {
  announce_draw();
  const std::lock_guard<std::mutex> guard(special_lock);
  const int64_t vocabulary = vocabulary_of(choices);
  auto bytes = on_cpu(indices).movedim(dimension, -1);
  const int64_t k = bytes.size(-1);
  auto rows = at::empty_strided({bytes.numel() / k, k}, {k, 1}, bytes.options());
  auto* values = static_cast<int64_t*>(rows.data_ptr());
  int64_t next = 0;
  for (int64_t i = 0; i < rows.numel(); i++) {
    values[i] = ordinary(next % choices, choices, vocabulary);
    next = values[i] + 1;
  }
  bytes.copy_(rows.view(bytes.sizes()));
}

}  // namespace emulated

extern "C" void emulated_values_special(const int64_t* tokens, size_t count, const int64_t* sizes, size_t size_count) {
  const std::lock_guard<std::mutex> guard(emulated::special_lock);
  emulated::special = {tokens, tokens + count};
  emulated::vocabularies = {sizes, sizes + size_count};
}

// Called before each draw, by the thread that draws.
extern "C" void emulated_values_on_draw(void (*callback)()) { emulated::on_draw = callback; }
