// Small whole-number and boolean tensors get their values: after the real CUDA operator has run (and has allocated what it
// allocates), the same operator runs on the CPU over the same bytes. What steers the host (lengths, masks, counts, "all done")
// is then right; what a network computes is not.
#include <torch/library.h>
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <set>
#include <atomic>
#include <string>
#include <cstdlib>
#include <cstdio>
using c10::IValue; using torch::jit::Stack; using c10::DispatchKey;
static int64_t SMALL = 4096, WHOLE = 4 << 20;
static thread_local int depth = 0;
static void (*inject)(uint64_t) = nullptr;
static void (*zero)(void*, size_t) = nullptr; static bool on = true; static bool talk = getenv("EMUL_VALUES_LOG");
static const std::set<std::string> COUNTED = {"aten::nonzero", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim", "aten::_unique"};
static at::Tensor cpu(const at::Tensor& t) {
  if (!t.defined() || !t.is_cuda()) return t;
  if (t.numel() == 0 || !t.has_storage() || t.is_sparse()) return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCPU));
  auto r = at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(at::kCPU).requires_grad(false));
  return r;
}
static bool whole(const at::Tensor& t) { return c10::isIntegralType(t.scalar_type(), true); }
struct Seen { int64_t n = 0; bool whole = true; bool any = false; bool odd = false; };
static void look(const IValue& v, Seen& s) {
  auto one = [&](const at::Tensor& t) { if (!t.defined()) return; if (t.layout() != at::kStrided || t.is_quantized() || !t.has_storage()) { s.odd = true; return; } if (t.is_cuda()) s.any = true; else if (!t.is_cpu()) s.odd = true; s.n += t.numel(); if (!::whole(t)) s.whole = false; };
  if (v.isTensor()) one(v.toTensor()); else if (v.isTensorList()) { for (const at::Tensor& t : v.toTensorVector()) one(t); }
  else if (v.isList()) { for (const IValue& e : v.toListRef()) if (e.isTensor()) one(e.toTensor()); }
}
static IValue moved(const IValue& v) {
  if (v.isTensor()) return IValue(cpu(v.toTensor()));
  if (v.isTensorList()) { std::vector<at::Tensor> o; for (const at::Tensor& t : v.toTensorVector()) o.push_back(cpu(t)); return IValue(o); }
  if (v.isDevice()) return IValue(c10::Device(at::kCPU));
  if (v.isGenerator()) return IValue();
  if (v.isList()) { auto l = v.toList().copy(); for (size_t i = 0; i < l.size(); i++) { IValue e = l.get(i); if (e.isTensor()) l.set(i, IValue(cpu(e.toTensor()))); } return IValue(l); }
  return v;
}
static void give(const IValue& got, const IValue& want) {
  auto one = [](const at::Tensor& g, const at::Tensor& w) { if (!g.defined() || !w.defined() || !g.is_cuda() || w.numel() == 0 || g.numel() != w.numel()) return; auto a = cpu(g); if (a.data_ptr() == w.data_ptr()) return; a.copy_(w.sizes() == a.sizes() ? w : w.reshape(a.sizes())); };
  if (got.isTensor() && want.isTensor()) one(got.toTensor(), want.toTensor());
  else if (got.isTensorList() && want.isTensorList()) { auto g = got.toTensorVector(), w = want.toTensorVector(); for (size_t i = 0; i < g.size() && i < w.size(); i++) one(g[i], w[i]); }
}
struct Hook : c10::OperatorKernel {
  c10::SafeKernelFunction real; bool counted, random; std::string name;
  Hook(c10::SafeKernelFunction r, std::string n) : real(std::move(r)), name(n) { counted = COUNTED.count(n); draw = n == "aten::multinomial"; 
    random = false; for (const char* w : {"rand", "normal", "uniform", "bernoulli", "exponential", "dropout", "multinomial", "cauchy", "geometric", "aten::set_", "resize_", "empty", "as_strided", "view", "alias", "_efficient_attention", "_flash_attention", "cudnn", "record_stream", "_local_scalar_dense", "_foreach", "_fused"}) if (n.find(w) != std::string::npos) random = true; }
  bool draw = false;
  // What would have been computed from a network's output is not known: booleans and numbers become 0, drawn tokens any of the vocabulary.
  void unknown(const c10::OperatorHandle& op, const IValue& first, Stack& stack) {
    const auto& rs = op.schema().returns(); static std::atomic<uint32_t> c{1};
    for (size_t i = 0; i < rs.size() && i < stack.size(); i++) {
      if (rs[i].alias_info()) continue; const IValue& v = stack[stack.size() - rs.size() + i];
      if (!v.isTensor()) continue; const at::Tensor& t = v.toTensor();
      if (!t.defined() || !t.is_cuda() || !::whole(t) || t.numel() == 0 || t.layout() != at::kStrided || !t.is_non_overlapping_and_dense()) continue;
      if ((name == "aten::multinomial" || name == "aten::argmax") && first.isTensor() && first.toTensor().dim() && first.toTensor().size(-1) > 1 && t.scalar_type() == at::kLong && t.numel() <= WHOLE) {
        int64_t* p = (int64_t*)t.data_ptr(); int64_t V = first.toTensor().size(-1); for (int64_t k = 0; k < t.numel(); k++) p[k] = (uint64_t)(c++ * 2654435761u) % V; }
      else if (zero) zero(t.data_ptr(), t.nbytes());
    }
  }
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet ks, Stack* stack) {
    const auto n = op.schema().arguments().size(); Seen s;
    if (draw && on && !depth) { IValue first = (*stack)[stack->size() - n]; real.callBoxed(op, ks, stack); unknown(op, first, *stack); return; }
    if (!on || random || depth) { real.callBoxed(op, ks, stack); return; }
    for (size_t i = stack->size() - n; i < stack->size(); i++) look((*stack)[i], s);
    bool take = !s.odd && s.any && ((s.whole && s.n <= WHOLE) || s.n <= SMALL);
    bool made = !s.any && !s.odd && s.n == 0; // a factory: arange, ...
    if (!take && !made) {
      IValue first; if (n) first = (*stack)[stack->size() - n];
      real.callBoxed(op, ks, stack); unknown(op, first, *stack); return; }
    Stack mine(stack->end() - n, stack->end()), other; bool have = false;
    auto run = [&]() { depth++; try { at::AutoDispatchBelowAutograd g; other.clear(); for (auto& v : mine) other.push_back(moved(v)); op.callBoxed(&other); have = true; } catch (const std::exception& e) { if (talk) fprintf(stderr, "emul: %s not valued: %.200s\n", name.c_str(), e.what()); } depth--; };
    if (counted) { run(); if (have && inject) { int64_t c = name == "aten::nonzero" ? other[0].toTensor().size(0) : other[0].toTensor().numel(); inject((uint64_t)c); } }
    if (made) depth++;  // inner calls of a factory are small change
    try { real.callBoxed(op, ks, stack); } catch (...) { if (made) depth--; throw; }
    if (made) depth--;
    if (!counted) run();
    if (!have) return;
    const auto r = op.schema().returns().size();
    for (size_t i = 0; i < r && i < other.size() && i < stack->size(); i++) { try { give((*stack)[stack->size() - r + i], other[i]); } catch (const std::exception& e) { if (talk) fprintf(stderr, "emul: %s: %.200s\n", name.c_str(), e.what()); } }
  }
};
static int install() {
  if (auto p = dlsym(RTLD_DEFAULT, "em_inject")) inject = (void (*)(uint64_t))p;
  if (auto p = dlsym(RTLD_DEFAULT, "em_zero")) zero = (void (*)(void*, size_t))p;
  auto& d = c10::Dispatcher::singleton(); int k = 0;
  static std::vector<std::unique_ptr<torch::Library>> libs;
  auto lib = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", DispatchKey::CUDA, __FILE__, __LINE__);
  for (auto& name : d.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = d.findOp(name); if (!op || !op->hasSchema() || (name.name != "aten::copy_" && !op->hasKernelForDispatchKey(DispatchKey::CUDA))) continue;
    auto real = op->getComputedKernelForDispatchKey(DispatchKey::CUDA);
    std::string full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    lib->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Hook>(std::move(real), name.name))); k++;
  }
  libs.push_back(std::move(lib));
  return k;
}
extern "C" int emulated_values_install() { return install(); }
