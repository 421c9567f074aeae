// Behind the prelude: from here on a kernel and NVIDIA's own headers see NVRTC's macros, and not those of the host's compiler.
// These headers (cuda/std and others that are taken from the wheels as they are) then ask for nothing of the host. No part of
// the prelude itself, since g++ gives its own macros back to what follows a precompiled header.
#pragma once

typedef long clock_t;
extern "C" {
void* malloc(size_t) noexcept __asm__("emu_malloc");
void free(void*) noexcept __asm__("emu_free");
}
inline void* operator new(size_t bytes) { return malloc(bytes); }
inline void* operator new[](size_t bytes) { return malloc(bytes); }
inline void* operator new(size_t, void* place) noexcept { return place; }
inline void* operator new[](size_t, void* place) noexcept { return place; }
inline void operator delete(void* p) noexcept { free(p); }
inline void operator delete[](void* p) noexcept { free(p); }
inline void operator delete(void* p, size_t) noexcept { free(p); }
inline void operator delete[](void* p, size_t) noexcept { free(p); }

// What NVRTC has of std without a header: move and forward.
namespace emu {
template <class T> struct Referred { using Type = T; };
template <class T> struct Referred<T&> { using Type = T; };
template <class T> struct Referred<T&&> { using Type = T; };
}
namespace std {
template <class T> constexpr typename emu::Referred<T>::Type&& move(T&& x) noexcept { return (typename emu::Referred<T>::Type&&)x; }
template <class T> constexpr T&& forward(typename emu::Referred<T>::Type& x) noexcept { return (T&&)x; }
template <class T> constexpr T&& forward(typename emu::Referred<T>::Type&& x) noexcept { return (T&&)x; }
}

// What NVRTC's compiler knows of types, as clang does, and g++ does not.
#if !defined(__clang__)
namespace emu {
template <class T> T&& value() noexcept;
template <class To> void take(To) noexcept;
template <class From, class To> constexpr auto converts(int) -> decltype(take<To>(value<From>()), true) { return true; }
template <class From, class To> constexpr bool converts(...) { return __is_same(From, void) && __is_same(To, void); }
template <class T> constexpr auto destroys(int) -> decltype(value<T&>().~T(), true) { return noexcept(value<T&>().~T()); }
template <class T> constexpr bool destroys(...) { return false; }
}
#define __is_convertible_to(...) emu::converts<__VA_ARGS__>(0)
#define __is_nothrow_destructible(...) emu::destroys<__VA_ARGS__>(0)
#endif

// A file that asks for the host's system means what it includes for it: OpenGL, threads, vectors of the processor.
#undef __linux__
#undef __linux
#undef linux
#undef __gnu_linux__
#undef __unix__
#undef __unix
#undef unix
#undef __x86_64__
#undef __x86_64
#undef __amd64__
#undef __amd64
#undef __aarch64__
#undef __GNUC__
#undef __clang__
#undef __OPTIMIZE__
#undef __MMX__
#undef __ELF__
#undef __pic__
#undef __PIC__
#undef __STRICT_ANSI__
#undef __VERSION__
#undef __GLIBC__
#undef __GLIBCXX__
#undef _LIBCPP_VERSION
