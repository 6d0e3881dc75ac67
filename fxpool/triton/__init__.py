"""Triton's own cache in fxpool's store: ``TRITON_CACHE_MANAGER=fxpool.triton:CacheManager``.

Triton asks its cache manager for the files of a kernel before it compiles, and gives it the files afterwards. This one
keeps them where Triton's own does (``TRITON_CACHE_DIR``), because Triton, and Inductor with it, open them there by
name; in addition, each kernel becomes an entry of fxpool's store. A kernel that the directory lacks comes from the
store or from the remote cache. If that lacks it, too, one process of a host compiles it, and one machine of a fleet.

      a kernel: get_group ──▶ directory, store, turn, remote ──▶ miss: put, put, put ..., put_group ──▶ store
      a helper: get_file ──▶ directory, store, remote ──▶ miss: put ──▶ store

cache_manager   the class that Triton calls
kernel_entries  a kernel as an entry of the store, and the turn to compile it

The keys are Triton's: they cover the kernel's source, its options, the target and Triton itself. No failure here makes
a compile fail. Imports neither Triton nor torch: Triton imports this package.
"""

from fxpool.triton.cache_manager import CacheManager

__all__ = ["CacheManager"]
