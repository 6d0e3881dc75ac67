"""Answers torch's C++ about CUDA devices while it traces for them, in a process without any.

Autograd records a stream for each tensor of a device, fake ones included. It gets the stream from torch's guard of that
device type, and checks whether such a device exists; a convolution checks for cuDNN. A build without CUDA has no guard,
and a build with CUDA calls a driver that sees no device. A small library, compiled once per host and build of torch,
registers a guard with one stream instead, and answers the other queries from a few numbers.
"""

from __future__ import annotations

import ctypes
import os

import torch

# Torch keeps pointers to guards and never frees them. Its hooks are one object without data behind a reference. The
# object's table of functions is replaced by a copy, in which some functions are fxpool's.
SOURCE = """\
#include <ATen/SDPBackend.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>
#include <type_traits>
#include <vector>

namespace {

using namespace c10;

constexpr DeviceType kind = DeviceType::CUDA;
DeviceIndex devices = 1;
int major = 0;
long cudnn = 0;

struct Guard final : impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kind; }
  Device exchangeDevice(Device) const override { return Device(kind, 0); }
  Device getDevice() const override { return Device(kind, 0); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device device) const override { return stream(device); }
  Stream getDefaultStream(Device device) const override { return stream(device); }
  Stream exchangeStream(Stream other) const override { return stream(other.device()); }
  DeviceIndex deviceCount() const noexcept override { return devices; }

 private:
  static Stream stream(Device device) {
    return Stream(Stream::DEFAULT, Device(kind, device.has_index() ? device.index() : 0));
  }
};

using Base = at::CUDAHooksInterface;

struct Hooks final : Base {
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  void init() const override {}
  DeviceIndex deviceCount() const override { return devices; }
  int getNumGPUs() const override { return devices; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  bool hasCuDNN() const override { return cudnn > 0; }
  bool compiledWithCuDNN() const override { return cudnn > 0; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return cudnn > 0; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return cudnn > 0; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return cudnn >= 8100 && major >= 8; }
  bool supportsBFloat16RNNWithCuDNN() const override { return cudnn >= 8200 && major >= 8; }
  long versionCuDNN() const override { return cudnn; }
  long versionRuntimeCuDNN() const override { return cudnn; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
  virtual void last() const {}
};

// Which implementation of attention is called next; what only a device can tell was asked of one before. Where it was
// not, what can't fail: the implementation for half types where there is no mask, the one for all sizes otherwise.
int attention = -1;

int64_t choose_attention(
    const at::Tensor& query, const at::Tensor&, const at::Tensor& value, const std::optional<at::Tensor>& mask,
    double, bool, std::optional<double>, bool grouped) {
  if (attention >= 0) return attention;
  const bool masked = mask.has_value() && mask->defined();
  const bool half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  const auto size = query.sym_size(-1).guard_int(__FILE__, __LINE__);
  if (half && !masked && major >= 8 && size <= 256 && query.sym_size(-1) == value.sym_size(-1)) {
    return static_cast<int64_t>(at::SDPBackend::flash_attention);
  }
  if (!grouped && major >= 8 && query.scalar_type() != at::kDouble && size % 8 == 0) {
    return static_cast<int64_t>(at::SDPBackend::efficient_attention);
  }
  return static_cast<int64_t>(at::SDPBackend::math);
}

// Where a virtual function stands in its table.
template <typename Function>
size_t place(Function function) {
  size_t words[2];
  static_assert(sizeof(function) == sizeof(words));
  std::memcpy(words, &function, sizeof(words));
#if defined(__aarch64__)
  return words[0] / sizeof(void*);
#else
  return (words[0] - 1) / sizeof(void*);
#endif
}

constexpr size_t kBefore = 2;  // what stands before the functions: an offset, and the type

}  // namespace

extern "C" int fxpool_attention(int choice) {
  const int before = attention;
  attention = choice;
  return before;
}

extern "C" void fxpool_no_device(int count, int capability, long version) {
  devices = static_cast<DeviceIndex>(count);
  major = capability;
  cudnn = version;
  // Never destroyed: torch may ask while the process ends.
  static const auto* guard = new Guard();
  impl::device_guard_impl_registry[static_cast<size_t>(kind)].store(guard);

  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);

  static const auto& hooks = *new Hooks();
  const Base& theirs = at::detail::getCUDAHooks();
  void** mine = *reinterpret_cast<void** const*>(&hooks);
  void** before = *reinterpret_cast<void** const*>(&theirs);
  if (before == mine) return;
  static auto& table = *new std::vector<void*>();
  if (table.empty()) {
    const size_t functions = place(&Hooks::last);
    table.assign(before - kBefore, before + functions);
    for (size_t at : {
             place(&Base::hasCUDA), place(&Base::isBuilt), place(&Base::isAvailable), place(&Base::hasPrimaryContext),
             place(&Base::init), place(&Base::deviceCount), place(&Base::getNumGPUs), place(&Base::current_device),
             place(&Base::getCurrentDevice), place(&Base::setCurrentDevice), place(&Base::exchangeDevice),
             place(&Base::maybeExchangeDevice), place(&Base::hasCuDNN), place(&Base::compiledWithCuDNN),
             place(&Base::supportsDilatedConvolutionWithCuDNN), place(&Base::supportsDepthwiseConvolutionWithCuDNN),
             place(&Base::supportsBFloat16ConvolutionWithCuDNNv8), place(&Base::supportsBFloat16RNNWithCuDNN),
             place(&Base::versionCuDNN), place(&Base::versionRuntimeCuDNN), place(&Base::batchnormMinEpsilonCuDNN)}) {
      table[kBefore + at] = mine[at];
    }
  }
  *reinterpret_cast<void***>(const_cast<Base*>(&theirs)) = table.data() + kBefore;
}
"""


def command(compiler: str, source: str, target: str) -> list[str]:
    """Return the arguments that compile the file `source` to the library `target`."""
    root = os.path.dirname(torch.__file__)
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return [
        compiler, "-std=c++20", "-O1", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-w",
        f"-I{root}/include", source, "-o", target, f"-L{root}/lib", "-lc10", "-ltorch_cpu",
    ]  # fmt: skip


_library: ctypes.CDLL | None = None


def install(library: str, devices: int, capability: int, cudnn: int | None) -> None:
    """Answer permanently for `devices` devices of this major capability. Raises OSError: `library` cannot be loaded."""
    global _library
    _library = ctypes.CDLL(library)
    _library.fxpool_no_device(devices, capability, ctypes.c_long(cudnn or 0))


def choose_attention(number: int) -> int:
    """Select torch's implementation of attention from now on (-1: torch chooses as it can without a device).

    Returns the number in force before. No-op, returning -1, unless `install` was called in this process.
    """
    return int(_library.fxpool_attention(number)) if _library is not None else -1
