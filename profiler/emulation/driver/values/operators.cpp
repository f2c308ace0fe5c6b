// Small tensors get their values: after an operator of the CUDA build has run, and has allocated what it allocates, the same
// operator runs on the CPU over the same bytes. Lengths, masks and counts that steer the host are right then; what a network
// computes is not. A float that is not known is 0, an integer or boolean that follows from it too, and the host's reads of
// such values are noted (memory.c).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <pthread.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tensors.h"

namespace emulated {
namespace {

using c10::IValue;
using Stack = torch::jit::Stack;

thread_local int computing = 0;  // inside an operator that runs on the CPU for its values

// ---- kinds of operators --------------------------------------------------------------------------------------------------

enum class Kind {
  PASSES,     // its results are parts of its inputs, or it has none
  ALLOCATES,  // its results have no values yet
  OPAQUE,     // never computed: attention and its saved state, cuDNN, fused optimizers, assertions on the card
  COMPUTES,
};

bool contains(const std::string& name, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

Kind kind_of(const std::string& name, const c10::FunctionSchema& schema) {
  static const std::set<std::string> passing = {
      "aten::set_", "aten::resize_", "aten::resize_as_", "aten::record_stream", "aten::_resize_output_"};
  if (passing.count(name)) return Kind::PASSES;
  if (contains(name, {"aten::empty", "aten::new_empty", "aten::_empty"})) return Kind::ALLOCATES;
  if (contains(name, {"attention", "cudnn", "_fused_", "_thnn_fused", "_assert_async"})) return Kind::OPAQUE;
  bool only_views = !schema.returns().empty();
  for (const auto& result : schema.returns()) only_views &= result.alias_info() && !result.alias_info()->isWrite();
  return only_views ? Kind::PASSES : Kind::COMPUTES;
}

// Operators whose result has as many elements as the card counted: the host reads the count.
bool counts(const std::string& name) {
  static const std::set<std::string> counting = {
      "aten::nonzero", "aten::_unique", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim"};
  return counting.count(name) > 0;
}

// Operators that write over the whole of their first argument without reading it.
bool overwrites(const std::string& name) {
  return contains(name, {"aten::copy_", "aten::fill_", "aten::zero_", "aten::random_", "aten::uniform_", "aten::normal_",
                         "aten::bernoulli_", "aten::exponential_", "aten::geometric_", "aten::cauchy_",
                         "aten::log_normal_"});
}

// What a network is made of: a process that runs them computes on the card.
bool multiplies(const std::string& name) {
  static const std::set<std::string> products = {"aten::mm",     "aten::addmm",   "aten::bmm",    "aten::baddbmm",
                                                 "aten::linear", "aten::_scaled_mm", "aten::_grouped_mm"};
  return products.count(name) > 0;
}

// A backward pass runs in a thread of autograd for each card.
bool in_backward() {
  static thread_local int answer = -1;
  char name[16] = "";
  if (answer < 0) answer = !pthread_getname_np(pthread_self(), name, sizeof name) && !strncmp(name, "pt_autograd", 11);
  return answer;
}

// Choices among a network's floats.
bool chooses(const std::string& name) {
  return name == "aten::multinomial" || name == "aten::argmax" || name == "aten::topk";
}

// What a comparison answers for every finite number: whether it is a NaN, whether it equals infinity, whether it equals itself.
// Nothing if that depends on the number.
std::optional<bool> if_finite(const std::string& name, const Stack& arguments) {
  if (name == "aten::isnan" || name == "aten::isinf" || name == "aten::isposinf" || name == "aten::isneginf") return false;
  if (arguments.size() != 2) return std::nullopt;
  const IValue& other = arguments[1];
  if (other.isTensor()) {
    if (!arguments[0].isTensor() || !arguments[0].toTensor().is_same(other.toTensor())) return std::nullopt;
    if (name == "aten::eq") return true;
    return name == "aten::ne" ? std::optional<bool>(false) : std::nullopt;
  }
  if (!other.isDouble() || !std::isinf(other.toDouble())) return std::nullopt;
  const bool above = other.toDouble() > 0;
  if (name == "aten::eq") return false;
  if (name == "aten::ne") return true;
  if (name == "aten::lt" || name == "aten::le") return above;
  return name == "aten::gt" || name == "aten::ge" ? std::optional<bool>(!above) : std::nullopt;
}

// ---- reads of the host -------------------------------------------------------------------------------------------------------

// While it lives, what this thread copies to the host is read as this tensor; integers are copied to a card whatever their size.
class Reading {
 public:
  explicit Reading(const at::Tensor& tensor) : type_(c10::toString(tensor.scalar_type())), before_(current_) {
    current_ = this;
    steers_ = is_whole(tensor);
    em_reading(type_, steers_);
    em_copy_all(steers_ && tensor.numel() <= MOST_WHOLE);
  }
  ~Reading() {
    current_ = before_;
    em_reading(before_ ? before_->type_ : nullptr, before_ ? before_->steers_ : 1);
    em_copy_all(0);
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  static thread_local Reading* current_;
  const char* type_;
  bool steers_;
  Reading* before_;
};
thread_local Reading* Reading::current_ = nullptr;

// ---- one operator ------------------------------------------------------------------------------------------------------------

// What an operator is called with, as far as its values are concerned.
struct Inputs {
  int64_t elements = 0;
  bool whole = true;     // integers and booleans only
  bool on_card = false;  // at least one
  bool odd = false;      // one that is sparse, quantized, or elsewhere
  bool unknown_floats = false;
  const char* culprit = nullptr;  // who made the first value that is not right
};

class Operator : public c10::OperatorKernel {
 public:
  Operator(c10::SafeKernelFunction real, const std::string& name, const c10::FunctionSchema& schema)
      : real_(std::move(real)), name_(name), kind_(kind_of(name, schema)), counts_(counts(name)), chooses_(chooses(name)), multiplies_(multiplies(name)) {
    const auto& arguments = schema.arguments();
    for (size_t i = 0; i < arguments.size(); i++) {
      const auto& argument = arguments[i];
      if (argument.alias_info() && argument.alias_info()->isWrite()) {
        written_.push_back(i);
        if (argument.is_out() || (i == 0 && overwrites(name))) overwritten_.insert(i);
      }
      auto type = argument.type();
      if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
      if (type->kind() == c10::TypeKind::GeneratorType) generators_.insert(i);
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (computing) return real_.callBoxed(op, keys, stack);
    if (kind_ == Kind::PASSES) return name_ == "aten::resize_" ? resize(op, keys, stack) : real_.callBoxed(op, keys, stack);
    const size_t count = op.schema().arguments().size(), results = op.schema().returns().size();
    const Stack arguments(stack->end() - count, stack->end());
    if (kind_ == Kind::ALLOCATES) {
      real_.callBoxed(op, keys, stack);
      each_result(arguments, *stack, results, [](const at::Tensor& tensor) { note_allocated(tensor); });
    } else if (const at::Tensor* read = read_by_host(arguments)) {
      Reading reading(*read);
      real_.callBoxed(op, keys, stack);
    } else {
      run(op, keys, *stack, arguments, results);
    }
  }

 private:
  c10::SafeKernelFunction real_;
  const std::string name_;
  const Kind kind_;
  const bool counts_, chooses_, multiplies_;
  std::vector<size_t> written_;    // arguments that it writes to
  std::set<size_t> overwritten_;   // those that it does not read
  std::set<size_t> generators_;

  // The tensor of a card that an operator copies to the host, or of the host that it copies to a card.
  const at::Tensor* read_by_host(const Stack& arguments) const {
    const bool scalar = name_ == "aten::_local_scalar_dense", copy = name_ == "aten::copy_";
    if (!scalar && !copy) return nullptr;
    const at::Tensor& source = arguments[copy ? 1 : 0].toTensor();
    return scalar || source.is_cuda() != arguments[0].toTensor().is_cuda() ? &source : nullptr;
  }

  // What integers gain when they grow is garbage on a card as well, and no program goes by it: objects that are gathered from
  // several ranks are padded so. It is 0 here.
  void resize(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) const {
    const at::Tensor tensor = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
    const size_t before = on_card(tensor) && tensor.is_contiguous() ? tensor.nbytes() : 0;
    real_.callBoxed(op, keys, stack);
    if (!before || !is_whole(tensor) || tensor.nbytes() <= before || tensor.numel() > MOST_WHOLE) return;
    char* added = static_cast<char*>(tensor.data_ptr()) + before;
    em_zero(added, tensor.nbytes() - before);
    em_values_right(added, tensor.nbytes() - before);
  }

  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack, const Stack& arguments, size_t results) {
    const Inputs inputs = look_at(arguments);
    if (multiplies_ && inputs.on_card) em_did(in_backward() ? EM_COMPUTES | EM_TRAINS : EM_COMPUTES);
    const bool small = inputs.whole ? inputs.elements <= MOST_WHOLE : inputs.elements <= MOST_ANY;
    const bool computes = kind_ == Kind::COMPUTES && small && inputs.on_card && !inputs.odd;
    if (const auto answer = inputs.unknown_floats ? if_finite(name_, arguments) : std::nullopt) {
      real_.callBoxed(op, keys, &stack);
      em_mark("assumption", "floats that are not computed are finite");
      each_result(arguments, stack, results, [&](const at::Tensor& tensor) { set_all(tensor, *answer); });
      return;
    }
    if (!computes || (chooses_ && inputs.unknown_floats)) {
      if (counts_) em_inject(0);
      real_.callBoxed(op, keys, &stack);
      leave_unknown(arguments, stack, results);
      return;
    }
    Stack computed;
    bool done = false;
    if (counts_ && (done = compute(op, arguments, computed))) em_inject(counted(computed));
    real_.callBoxed(op, keys, &stack);
    if (!counts_) done = compute(op, arguments, computed);
    if (!done || !copy_results(stack, computed, results)) return leave_unknown(arguments, stack, results);
    each_result(arguments, stack, results, [&](const at::Tensor& tensor) {
      if (!inputs.culprit) return note_right(tensor);
      replace_not_finite(tensor);
      note_unknown(tensor, inputs.culprit);
    });
  }

  Inputs look_at(const Stack& arguments) const {
    Inputs found;
    for (size_t i = 0; i < arguments.size(); i++) {
      const bool is_read = !overwritten_.count(i);
      each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        if (tensor.layout() != at::kStrided || tensor.is_quantized() || !tensor.has_storage()) {
          found.odd = true;
          return;
        }
        found.on_card |= tensor.is_cuda();
        found.odd |= !tensor.is_cuda() && !tensor.is_cpu();
        found.elements += tensor.numel();
        found.whole &= is_whole(tensor);
        if (!is_read || found.odd || found.elements > MOST_WHOLE) return;
        if (!found.whole && found.elements > MOST_ANY) {
          found.unknown_floats = true;  // too many to be computed, whatever they are
          return;
        }
        const char* producer = unknown(tensor);
        if (!producer) return;
        found.unknown_floats |= !is_whole(tensor);
        if (!found.culprit) found.culprit = is_whole(tensor) ? producer : name_.c_str();
      });
    }
    return found;
  }

  // Run the operator on the CPU. False if the CPU has none, or it refuses.
  bool compute(const c10::OperatorHandle& op, const Stack& arguments, Stack& computed) const {
    computing++;
    bool done = true;
    try {
      at::AutoDispatchBelowAutograd guard;
      computed.clear();
      for (size_t i = 0; i < arguments.size(); i++) {
        computed.push_back(generators_.count(i) ? IValue(own_generator()) : moved(arguments[i]));
      }
      op.callBoxed(&computed);
    } catch (const std::exception& error) {
      em_mark("not computed", (name_ + ": " + first_line(error.what())).c_str());
      done = false;
    }
    computing--;
    return done;
  }

  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  // Draws for a card do not advance the host's own generator.
  static at::Generator own_generator() {
    static at::Generator generator = at::detail::createCPUGenerator(0);
    return generator;
  }

  // An argument for the CPU. histc of the CPU takes floats only.
  IValue moved(const IValue& value) const {
    auto one = [&](const at::Tensor& tensor) {
      auto bytes = on_cpu(tensor);
      return name_ == "aten::histc" && bytes.defined() && is_whole(bytes) ? bytes.to(at::kFloat) : bytes;
    };
    if (value.isTensor()) return one(value.toTensor());
    if (value.isDevice()) return c10::Device(at::kCPU);
    if (value.isTensorList()) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(one(tensor));
      return tensors;
    }
    if (!value.isList()) return value;
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); i++) {
      IValue each = list.get(i);
      if (each.isTensor()) list.set(i, IValue(one(each.toTensor())));
    }
    return list;
  }

  // Elements that an operator of `counts` found: rows of nonzero's indices, or unique values.
  uint64_t counted(const Stack& computed) const {
    const at::Tensor& first = computed[0].toTensor();
    return static_cast<uint64_t>(name_ == "aten::nonzero" || name_ == "aten::unique_dim" ? first.size(0) : first.numel());
  }

  bool copy_results(const Stack& stack, const Stack& computed, size_t results) const {
    try {
      for (size_t i = 0; i < results && i < computed.size(); i++) {
        const IValue &result = stack[stack.size() - results + i], &value = computed[i];
        if (result.isTensor() && value.isTensor()) {
          give(result.toTensor(), value.toTensor());
        } else if (result.isTensorList() && value.isTensorList()) {
          auto targets = result.toTensorVector(), values = value.toTensorVector();
          for (size_t j = 0; j < targets.size() && j < values.size(); j++) give(targets[j], values[j]);
        }
      }
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  // Call `visit` with the new results of an operator, and with the arguments that it wrote to.
  template <typename Visit>
  void each_result(const Stack& arguments, const Stack& stack, size_t results, Visit visit) const {
    if (written_.empty()) {
      for (size_t i = stack.size() - results; i < stack.size(); i++) each_tensor(stack[i], visit);
    }
    for (size_t i : written_) each_tensor(arguments[i], visit);
  }

  void leave_unknown(const Stack& arguments, const Stack& stack, size_t results) const {
    const bool fresh = written_.empty();
    int64_t choices = 0, dimension = -1;
    if (chooses_) std::tie(choices, dimension) = choices_of(arguments);
    each_result(arguments, stack, results, [&](const at::Tensor& tensor) {
      if (!on_card(tensor)) return;
      const bool indices = tensor.scalar_type() == at::kLong && tensor.numel() <= MOST_WHOLE && choices > 0;
      if (indices && tensor.is_non_overlapping_and_dense()) return draw(tensor, choices, dimension);
      if (fresh && (is_whole(tensor) || tensor.numel() <= MOST_ANY)) set_zero(tensor);
      note_unknown(tensor, name_.c_str());
    });
  }

  // Among how many elements, and of which dimension, the operator chooses. 0: it does not return indices of a dimension.
  std::pair<int64_t, int64_t> choices_of(const Stack& arguments) const {
    const at::Tensor& scores = arguments[0].toTensor();
    if (scores.dim() == 0) return {0, -1};
    if (name_ == "aten::multinomial") return {scores.size(-1), -1};
    const IValue& given = arguments[name_ == "aten::topk" ? 2 : 1];
    if (!given.isInt()) return {scores.numel(), -1};
    return {scores.size(given.toInt()), given.toInt()};
  }

  void draw(const at::Tensor& indices, int64_t choices, int64_t dimension) const {
    if (name_ == "aten::topk") {
      draw_balanced(indices, dimension, choices);
      const int64_t k = indices.size(dimension);
      em_mark("assumption",
              ("aten::topk chooses " + std::to_string(k) + " of " + std::to_string(choices) + " equally often").c_str());
    } else {
      draw_uniformly(indices, choices);
      em_mark("assumption", (name_ + " draws any token but special ones with equal probability").c_str());
    }
    note_right(indices);
  }
};

// ---- registration --------------------------------------------------------------------------------------------------------------

// Put an `Operator` around every operator of torch that has a kernel for CUDA. copy_ has one for all devices.
int install() {
  static auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  int count = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    if (name.name != "aten::copy_" && !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
    auto around = std::make_unique<Operator>(
        op->getComputedKernelForDispatchKey(c10::DispatchKey::CUDA), name.name, op->schema());
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    library->impl((name.name.substr(6) + overload).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(around)));
    count++;
  }
  return count;
}

}  // namespace
}  // namespace emulated

extern "C" int emulated_values_install() {
  static std::once_flag once;
  static int count = 0;
  std::call_once(once, [] { count = emulated::install(); });
  return count;
}
