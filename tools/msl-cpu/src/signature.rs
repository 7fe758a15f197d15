//! The function that MLX makes around the body of a custom kernel.

use std::fmt::Write;

/// An element type, by MLX's name for it in Metal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// `float`
    F32,
    /// `float16_t`
    F16,
    /// `bfloat16_t`
    Bf16,
    /// `uint32_t`
    U32,
    /// `int32_t`
    I32,
    /// `uint8_t`
    U8,
}

impl Dtype {
    const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F16 => "float16_t",
            Self::Bf16 => "bfloat16_t",
            Self::U32 => "uint32_t",
            Self::I32 => "int32_t",
            Self::U8 => "uint8_t",
        }
    }
}

/// A template argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// `typename`
    Type(Dtype),
    /// `int`
    Int(i32),
    /// `bool`
    Bool(bool),
}

impl Template {
    const fn kind(self) -> &'static str {
        match self {
            Self::Type(_) => "typename",
            Self::Int(_) => "int",
            Self::Bool(_) => "bool",
        }
    }

    fn value(self) -> String {
        match self {
            Self::Type(dtype) => dtype.name().into(),
            Self::Int(value) => value.to_string(),
            Self::Bool(value) => i32::from(value).to_string(),
        }
    }
}

/// An input array.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'a> {
    /// Its name in the body.
    pub name: &'a str,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape. Empty: a scalar, passed by reference. Fewer than 8 elements: in the constant address space.
    pub shape: &'a [usize],
}

impl Argument<'_> {
    const fn is_scalar(&self) -> bool {
        self.shape.is_empty()
    }

    fn is_constant(&self) -> bool {
        self.shape.iter().product::<usize>() < 8
    }
}

/// All that decides the signature.
#[derive(Clone, Copy, Debug)]
pub struct Signature<'a> {
    /// The kernel's name.
    pub name: &'a str,
    /// Inputs, in order.
    pub inputs: &'a [Argument<'a>],
    /// Names and types of the outputs, in order.
    pub outputs: &'a [(&'a str, Dtype)],
    /// Template parameters, in order.
    pub template: &'a [(&'a str, Template)],
}

/// A kernel as MLX would hand it to Metal's compiler, without the definitions MLX puts before it.
#[derive(Clone, Debug)]
pub struct KernelText {
    /// The text.
    pub metal: String,
    /// A C function that calls it with untyped buffers.
    pub(crate) trampoline: String,
}

/// The attributes a body may name, with their types.
const ATTRIBUTES: &[(&str, &str)] = &[
    ("dispatch_quadgroups_per_threadgroup", "uint"),
    ("dispatch_simdgroups_per_threadgroup", "uint"),
    ("dispatch_threads_per_threadgroup", "uint3"),
    ("grid_origin", "uint3"),
    ("grid_size", "uint3"),
    ("quadgroup_index_in_threadgroup", "uint"),
    ("quadgroups_per_threadgroup", "uint"),
    ("simdgroup_index_in_threadgroup", "uint"),
    ("simdgroups_per_threadgroup", "uint"),
    ("thread_execution_width", "uint"),
    ("thread_index_in_quadgroup", "uint"),
    ("thread_index_in_simdgroup", "uint"),
    ("thread_index_in_threadgroup", "uint"),
    ("thread_position_in_grid", "uint3"),
    ("thread_position_in_threadgroup", "uint3"),
    ("threadgroup_position_in_grid", "uint3"),
    ("threadgroups_per_grid", "uint3"),
    ("threads_per_grid", "uint3"),
    ("threads_per_simdgroup", "uint"),
    ("threads_per_threadgroup", "uint3"),
];

/// The parameters of the function, and what the trampoline passes for each.
#[derive(Default)]
struct Parameters {
    declared: Vec<String>,
    passed: Vec<String>,
    buffers: usize,
}

impl Parameters {
    fn buffer(&mut self, declaration: &str, by_reference: bool) {
        let index = self.buffers;
        let wrapper = if by_reference { "AnyRef" } else { "AnyPtr" };
        self.declared.push(format!("  {declaration} [[buffer({index})]]"));
        self.passed.push(format!("mslrt::{wrapper}{{b[{index}]}}"));
        self.buffers += 1;
    }

    fn input(&mut self, input: &Argument<'_>, body: &str) {
        let Argument { name, dtype, .. } = *input;
        let space = if input.is_constant() { "constant" } else { "device" };
        let sigil = if input.is_scalar() { "&" } else { "*" };
        self.buffer(&format!("const {space} {}{sigil} {name}", dtype.name()), input.is_scalar());
        if input.is_scalar() {
            return;
        }
        for (suffix, kind) in [("_shape", "int*"), ("_strides", "int64_t*"), ("_ndim", "int&")] {
            if body.contains(&format!("{name}{suffix}")) {
                self.buffer(&format!("const constant {kind} {name}{suffix}"), kind.ends_with('&'));
            }
        }
    }

    fn attribute(&mut self, name: &str, kind: &str) {
        self.declared.push(format!("  {kind} {name} [[{name}]]"));
        self.passed.push(match kind {
            "uint3" => format!("uint3(l.{name}.x, l.{name}.y, l.{name}.z)"),
            _ => format!("l.{name}"),
        });
    }
}

impl Signature<'_> {
    /// The name under which MLX keeps the compiled kernel: it holds the template arguments and the input types.
    #[must_use]
    pub fn function_name(&self) -> String {
        let mut name = format!("custom_kernel_{}", self.name);
        if !self.template.is_empty() {
            let values: Vec<String> = self.template.iter().map(|(_, argument)| argument.value()).collect();
            let _ = write!(name, "__{}", values.join("_"));
        }
        for input in self.inputs {
            let kind = if input.is_scalar() {
                "s"
            } else if input.is_constant() {
                "c"
            } else {
                ""
            };
            let _ = write!(name, "_{}{kind}", input.dtype.name());
        }
        for (_, dtype) in self.outputs {
            let _ = write!(name, "_{}", dtype.name());
        }
        name
    }

    /// `header`, then the function around `body`.
    #[must_use]
    pub fn wrap(&self, header: &str, body: &str) -> KernelText {
        let name = self.function_name();
        let mut parameters = Parameters::default();
        for input in self.inputs {
            parameters.input(input, body);
        }
        for (output, dtype) in self.outputs {
            parameters.buffer(&format!("device {}* {output}", dtype.name()), false);
        }
        for (attribute, kind) in ATTRIBUTES.iter().filter(|(attribute, _)| body.contains(attribute)) {
            parameters.attribute(attribute, kind);
        }
        let mut metal = header.to_owned();
        let mut instance = name.clone();
        if !self.template.is_empty() {
            let declared = self.template.iter().map(|(name, argument)| format!("{} {name}", argument.kind()));
            let _ = writeln!(metal, "template <{}>", declared.collect::<Vec<_>>().join(", "));
            let values: Vec<String> = self.template.iter().map(|(_, argument)| argument.value()).collect();
            let _ = write!(instance, "<{}>", values.join(", "));
        }
        let _ =
            write!(metal, "[[kernel]] void {name}(\n{}) {{\n{body}\n}}\n", parameters.declared.join(",\n"));
        if !self.template.is_empty() {
            let _ = write!(
                metal,
                "\ntemplate [[host_name(\"{name}\")]] [[kernel]] decltype({instance}) {instance};\n"
            );
        }
        let trampoline = format!(
            "extern \"C\" __attribute__((no_sanitize(\"thread\"))) void msl_entry(void** b, const mslrt::Lane& l) {{ \
             (void)b; (void)l; {instance}({}); }}\n",
            parameters.passed.join(", ")
        );
        KernelText { metal, trampoline }
    }
}
