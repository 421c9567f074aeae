"""The functions of CUDA's Math API that the table calls, by the types that they take."""

from __future__ import annotations

_OF_A_FLOAT = (
    "acos acosh asin asinh atan atanh cbrt ceil cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 erf erfc erfcinv erfcx "
    "erfinv exp exp10 exp2 expm1 fabs floor j0 j1 lgamma log log10 log1p log2 logb nearbyint normcdf normcdfinv rcbrt "
    "rint round rsqrt sin sinh sinpi sqrt tan tanh tgamma trunc y0 y1 ilogb lrint lround llrint llround"
)
_OF_TWO = "atan2 copysign fdim fmax fmin fmod hypot nextafter pow remainder rhypot"
_WITHOUT_F = "isfinite isinf isnan signbit abs"


def _single(names: str) -> str:
    return " ".join(f"{name}f" for name in names.split())


def _rounding(names: str) -> str:
    return " ".join(f"{name}_{way}" for name in names.split() for way in ("rn", "rz", "ru", "rd"))


def _small(names: str) -> str:
    return " ".join(f"{name}{n}" for name in names.split() for n in (2, 4))


FUNCTIONS = {  # (group, types of the arguments): names
    ("f32 functions", "f32"): (
        f"{_single(_OF_A_FLOAT)} {_WITHOUT_F} __finitef __signbitf __isnanf __isinff fabs ceil floor exp log sqrt sin "
        "rsqrt trunc"
    ),
    ("f32 functions", "f32 f32"): f"{_single(_OF_TWO)} fdividef max min fmin fmax pow fmod copysign",
    ("f32 functions", "f32 f32 f32"): "fmaf fma norm3df rnorm3df",
    ("f32 functions", "f32 f32 f32 f32"): "norm4df rnorm4df",
    ("f32 functions", "f32 s32"): "ldexpf scalbnf scalbn ldexp",
    ("f32 functions", "f32 s64"): "scalblnf",
    ("f64 functions", "f64"): f"{_OF_A_FLOAT} {_WITHOUT_F} __finite __signbit __isnan __isinf",
    ("f64 functions", "f64 f64"): f"{_OF_TWO} fdivide max min",
    ("f64 functions", "f64 f64 f64"): "fma norm3d rnorm3d",
    ("f64 functions", "f64 f64 f64 f64"): "norm4d rnorm4d",
    ("f64 functions", "f64 s32"): "ldexp scalbn",
    ("f64 functions", "f64 s64"): "scalbln",
    ("f64 functions", "f64 f32"): "max min copysign",
    ("f64 functions", "f32 f64"): "max min copysign",
    ("intrinsics", "f32"): (
        f"{_rounding('__frcp __fsqrt __float2int __float2uint __float2ll __float2ull')} __cosf __exp10f __expf "
        "__frsqrt_rn __log10f __log2f __logf __saturatef __sinf __tanf __tanhf __float_as_int __float_as_uint"
    ),
    ("intrinsics", "f32 f32"): f"{_rounding('__fadd __fsub __fmul __fdiv')} __fdividef __powf",
    ("intrinsics", "f32 f32 f32"): _rounding("__fmaf __fmaf_ieee"),
    ("intrinsics", "f64"): (
        f"{_rounding('__drcp __dsqrt __double2float __double2int __double2uint __double2ll __double2ull')} "
        "__double2hiint __double2loint __double_as_longlong"
    ),
    ("intrinsics", "f64 f64"): _rounding("__dadd __dsub __dmul __ddiv"),
    ("intrinsics", "f64 f64 f64"): _rounding("__fma"),
    ("intrinsics", "s32"): f"{_rounding('__int2float')} __int2double_rn __int_as_float",
    ("intrinsics", "u32"): f"{_rounding('__uint2float')} __uint2double_rn __uint_as_float",
    ("intrinsics", "s64"): f"{_rounding('__ll2float __ll2double')} __longlong_as_double",
    ("intrinsics", "u64"): _rounding("__ull2float __ull2double"),
    ("intrinsics", "s32 s32"): "__hiloint2double",
    ("integer functions", "s32"): "__clz __ffs abs",
    ("integer functions", "s64"): "__clzll __ffsll llabs labs abs",
    ("integer functions", "u32"): "__brev __popc",
    ("integer functions", "u64"): "__brevll __popcll",
    ("integer functions", "s32 s32"): "__hadd __mul24 __mulhi __rhadd __vimax_s32_relu __vimin_s32_relu max min",
    ("integer functions", "u32 u32"): "__uhadd __umul24 __umulhi __urhadd max min umax umin",
    ("integer functions", "s64 s64"): "__mul64hi llmax llmin max min",
    ("integer functions", "u64 u64"): "__umul64hi max min ullmax ullmin",
    ("integer functions", "s32 u32"): "max min",
    ("integer functions", "u32 s32"): "max min",
    ("integer functions", "s64 u64"): "max min",
    ("integer functions", "u64 s64"): "max min",
    ("integer functions", "s32 s32 u32"): "__sad",
    ("integer functions", "s32 s32 s32"): (
        "__dp2a_hi __dp2a_lo __dp4a __viaddmax_s32 __viaddmax_s32_relu __viaddmin_s32 __viaddmin_s32_relu "
        "__vimax3_s32 __vimax3_s32_relu __vimin3_s32 __vimin3_s32_relu"
    ),
    ("integer functions", "u32 u32 u32"): (
        "__byte_perm __dp2a_hi __dp2a_lo __dp4a __funnelshift_l __funnelshift_lc __funnelshift_r __funnelshift_rc "
        "__usad __viaddmax_u32 __viaddmin_u32 __vimax3_u32 __vimin3_u32"
    ),
    ("integer functions", "u32 u32 s32"): "__fns",
    ("small integers", "u32"): _small("__vabs __vabsss __vneg __vnegss"),
    ("small integers", "u32 u32"): (
        _small(
            "__vabsdiffs __vabsdiffu __vadd __vaddss __vaddus __vavgs __vavgu __vcmpeq __vcmpges __vcmpgeu __vcmpgts "
            "__vcmpgtu __vcmples __vcmpleu __vcmplts __vcmpltu __vcmpne __vhaddu __vmaxs __vmaxu __vmins __vminu "
            "__vsads __vsadu __vseteq __vsetges __vsetgeu __vsetgts __vsetgtu __vsetles __vsetleu __vsetlts __vsetltu "
            "__vsetne __vsub __vsubss __vsubus"
        )
        + " __vimax_s16x2_relu __vimin_s16x2_relu"
    ),
    ("small integers", "u32 u32 u32"): (
        "__viaddmax_s16x2 __viaddmax_s16x2_relu __viaddmax_u16x2 __viaddmin_s16x2 __viaddmin_s16x2_relu "
        "__viaddmin_u16x2 __vimax3_s16x2 __vimax3_s16x2_relu __vimax3_u16x2 __vimin3_s16x2 __vimin3_s16x2_relu "
        "__vimin3_u16x2"
    ),
}


def _by_pointer(call: str, result: str, name: str = "x") -> str:
    """What a call leaves in a variable whose address it takes."""
    return f"[&] {{ {result} {name} = 0; {call}; return {name}; }}()"


def _sides(name: str, real: str) -> list[str]:
    """Both results of a function such as sincos."""
    return [f"[&] {{ {real} x, y; {name}(a, &x, &y); return {kept}; }}()" for kept in "xy"]


def _relation(name: str, type_: str, predicates: int) -> list[str]:
    """The result of a maximum or minimum that also says which argument it is, and what it says."""
    variables = ", ".join(f"p{n} = false" for n in range(predicates))
    addresses = ", ".join(f"&p{n}" for n in range(predicates))
    kept = [f"({type_})r", *(f"p{n}" for n in range(predicates))]
    return [f"[&] {{ bool {variables}; auto r = {name}(a, b, {addresses}); return {k}; }}()" for k in kept]


ROUNDED_BY_ARGUMENT = {  # functions that take how to round: by the types of what they round
    "f64": "double2int double2uint double2ll double2ull",
    "f32": "float2double",
    "s32": "int2double",
    "u32": "uint2double",
    "s64": "ll2double",
    "u64": "ull2double",
    "f64 f64": "dadd dmul dsub",
    "f64 f64 f64": "fma",
}
WITH_RESULTS = {  # as FUNCTIONS: expressions, where a function gives more than one number, or takes others
    ("f32 functions", "f32"): [
        *(text for name in ("sincosf", "sincospif", "__sincosf") for text in _sides(name, "float")),
        *(_by_pointer(call, "int") for call in ("frexpf(a, &x)",)),
        "[&] { int x; return frexpf(a, &x); }()",
        _by_pointer("modff(a, &x)", "float"),
        "[&] { float x; return modff(a, &x); }()",
        *(f"{name}({n}, a)" for name in ("jnf", "ynf") for n in (0, 2, 5)),
        'nanf("") + a',
    ],
    ("f64 functions", "f64"): [
        *(text for name in ("sincos", "sincospi") for text in _sides(name, "double")),
        _by_pointer("frexp(a, &x)", "int"),
        "[&] { int x; return frexp(a, &x); }()",
        _by_pointer("modf(a, &x)", "double"),
        "[&] { double x; return modf(a, &x); }()",
        *(f"{name}({n}, a)" for name in ("jn", "yn") for n in (0, 2, 5)),
        'nan("") + a',
    ],
    ("f32 functions", "f32 f32"): [
        "[&] { int x; return remquof(a, b, &x); }()",
        "[&] { int x = 0; return isfinite(a) && isfinite(b) && b != 0 ? (remquof(a, b, &x), x & 7) : 0; }()",
    ],
    ("f64 functions", "f64 f64"): [
        "[&] { int x; return remquo(a, b, &x); }()",
        "[&] { int x = 0; return isfinite(a) && isfinite(b) && b != 0 ? (remquo(a, b, &x), x & 7) : 0; }()",
    ],
    ("f32 functions", "f32 f32 f32"): [
        f"[&] {{ const float x[] = {{a, b, c}}; return {name}(3, x); }}()" for name in ("normf", "rnormf")
    ],
    ("f64 functions", "f64 f64 f64"): [
        f"[&] {{ const double x[] = {{a, b, c}}; return {name}(3, x); }}()" for name in ("norm", "rnorm")
    ],
    ("integer functions", "s32 s32"): [
        text for name in ("__vibmax_s32", "__vibmin_s32") for text in _relation(name, "int", 1)
    ],
    ("integer functions", "u32 u32"): [
        text for name in ("__vibmax_u32", "__vibmin_u32") for text in _relation(name, "unsigned", 1)
    ],
    ("small integers", "u32 u32"): [
        text
        for name in ("__vibmax_s16x2", "__vibmin_s16x2", "__vibmax_u16x2", "__vibmin_u16x2")
        for text in _relation(name, "unsigned", 2)
    ],
    ("integer functions", "u32 u32 u32"): [
        f"{name}({kinds})"
        for name, first, second in (
            ("__dp4a", "char4", "char4"),
            ("__dp2a_lo", "short2", "char4"),
            ("__dp2a_hi", "short2", "char4"),
        )
        for kinds in (
            f"from_bits<{first}>(a), from_bits<{second}>(b), (int)c",
            f"from_bits<u{first}>(a), from_bits<u{second}>(b), c",
        )
    ],
    ("fp8", "f32"): [
        f"__nv_cvt_float_to_fp8(a, {way}, {kind})"
        for way in ("__NV_SATFINITE", "__NV_NOSAT")
        for kind in ("__NV_E4M3", "__NV_E5M2")
    ]
    + ["(float)__nv_fp8_e4m3(a)", "(float)__nv_fp8_e5m2(a)"],
    ("fp8", "f64"): [
        f"__nv_cvt_double_to_fp8(a, {way}, {kind})"
        for way in ("__NV_SATFINITE", "__NV_NOSAT")
        for kind in ("__NV_E4M3", "__NV_E5M2")
    ],
    ("fp8", "f16"): [
        f"__nv_cvt_halfraw_to_fp8(a, {way}, {kind})"
        for way in ("__NV_SATFINITE", "__NV_NOSAT")
        for kind in ("__NV_E4M3", "__NV_E5M2")
    ],
    ("fp8", "bf16"): [
        f"__nv_cvt_bfloat16raw_to_fp8(a, {way}, {kind})"
        for way in ("__NV_SATFINITE", "__NV_NOSAT")
        for kind in ("__NV_E4M3", "__NV_E5M2")
    ],
    ("fp8", "u8"): [f"__half(__nv_cvt_fp8_to_halfraw(a, {kind}))" for kind in ("__NV_E4M3", "__NV_E5M2")],
}
HALF_FUNCTIONS = {  # of half (h) and of bfloat16: {h} and {h2} are their names in those of functions
    "h": (
        "__habs __hneg hceil hcos hexp hexp10 hexp2 hfloor hlog hlog10 hlog2 hrcp hrint hrsqrt hsin hsqrt htanh "
        "htanh_approx htrunc __hisnan __hisinf __{h}2float __{h}_as_short __{h}_as_ushort __{h}2char_rz __{h}2uchar_rz "
        + _rounding("__{h}2int __{h}2uint __{h}2short __{h}2ushort __{h}2ll __{h}2ull")
    ),
    "h h": (
        "__hadd __hadd_rn __hadd_sat __hdiv __hmax __hmax_nan __hmin __hmin_nan __hmul __hmul_rn __hmul_sat __hsub "
        "__hsub_rn __hsub_sat __heq __hequ __hge __hgeu __hgt __hgtu __hle __hleu __hlt __hltu __hne __hneu"
    ),
    "h h h": "__hfma __hfma_relu __hfma_sat",
    "f32": "__float2{h} " + _rounding("__float2{h}"),
    "f64": "__double2{h}",
    "s32": _rounding("__int2{h}"),
    "u32": _rounding("__uint2{h}"),
    "s16": _rounding("__short2{h}") + " __short_as_{h}",
    "u16": _rounding("__ushort2{h}") + " __ushort_as_{h}",
    "s64": _rounding("__ll2{h}"),
    "u64": _rounding("__ull2{h}"),
}
