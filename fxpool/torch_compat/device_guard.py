"""What torch's C++ asks of CUDA devices while it traces for them, answered in a process that has none.

Autograd notes a stream for each tensor of a device, fake ones included, asks torch's guard of that kind of device for
it, and asks whether there is such a device at all; a convolution asks for cuDNN. A build without CUDA has no guard, and
a build with CUDA asks a driver that sees no device. A small library, compiled once per host and build of torch, puts a
guard with one stream in that place and answers the rest from a few numbers.
"""

from __future__ import annotations

import ctypes
import os

import torch

# Torch keeps pointers to guards and never frees them. Its hooks are one object without data behind a reference: a copy
# of its table of functions, some of them replaced, takes that table's place.
SOURCE = """\
#include <ATen/detail/CUDAHooksInterface.h>
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

extern "C" void fxpool_no_device(int count, int capability, long version) {
  devices = static_cast<DeviceIndex>(count);
  major = capability;
  cudnn = version;
  static Guard guard;
  impl::device_guard_impl_registry[static_cast<size_t>(kind)].store(&guard);

  static const Hooks hooks;
  const Base& theirs = at::detail::getCUDAHooks();
  void** mine = *reinterpret_cast<void** const*>(&hooks);
  void** before = *reinterpret_cast<void** const*>(&theirs);
  if (before == mine) return;
  static std::vector<void*> table;
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
    """Arguments that make the library `target` of the file `source`."""
    root = os.path.dirname(torch.__file__)
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return [
        compiler, "-std=c++20", "-O1", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-w",
        f"-I{root}/include", source, "-o", target, f"-L{root}/lib", "-lc10", "-ltorch_cpu",
    ]  # fmt: skip


def install(library: str, devices: int, capability: int, cudnn: int | None) -> None:
    """Answer as for so many devices of this major capability, for good. Raises OSError if it does not load."""
    ctypes.CDLL(library).fxpool_no_device(devices, capability, ctypes.c_long(cudnn or 0))
