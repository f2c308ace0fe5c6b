// Tensors of an emulated card, whose bytes the host can read and write like its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

extern "C" {
#include "emulated.h"
}

namespace emulated {

// Most elements of the inputs of an operator that is computed: of integers and booleans, and of any type.
constexpr int64_t MOST_WHOLE = int64_t(8) << 20;
constexpr int64_t MOST_ANY = 4096;

inline bool is_whole(const at::Tensor& tensor) { return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true); }

// Whether the tensor's elements lie in the memory of a card.
bool on_card(const at::Tensor& tensor);

// The same bytes as a tensor of the CPU. Tensors that are not on a card stay as they are.
at::Tensor on_cpu(const at::Tensor& tensor);

// Copy what was computed on the CPU to the result of the real operator.
void give(const at::Tensor& result, const at::Tensor& computed);

// Bytes 0 are false, 0 and 0.0.
void set_zero(const at::Tensor& tensor);
void set_all(const at::Tensor& tensor, bool value);  // of booleans; noted as right
void replace_not_finite(const at::Tensor& tensor);

// Draws in place of a choice among `choices` floats that are not known: any of them with equal probability ...
// Tokens are drawn that mean nothing to a program: one that ends a text would decide how long it is.
void draw_uniformly(const at::Tensor& indices, int64_t choices);
// ... or, for the experts of a mixture, each of them equally often: row i takes the k experts after those of row i - 1.
void draw_balanced(const at::Tensor& indices, int64_t dimension, int64_t choices);

// What is known of a tensor's bytes (known_bytes.c). `unknown`: who made what is not right; null if all of it is.
const char* unknown(const at::Tensor& tensor);
void note_right(const at::Tensor& tensor);
void note_unknown(const at::Tensor& tensor, const char* producer);
void note_allocated(const at::Tensor& tensor);

// Call `visit` with every tensor in a value: a tensor, a list of tensors, a list of optional tensors.
template <typename Visit>
void each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isTensor() && each.toTensor().defined()) visit(each.toTensor());
    }
  }
}

}  // namespace emulated
