//! Entries to helpers that change no register: a call that is rarely made costs the code around it nothing.
//!
//! An ordinary call leaves only six registers as they were, and no vector register; so values would be spilled, in fast
//! paths too, for calls in slow paths beside them.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use cranelift_codegen::ir::{AbiParam, InstBuilder, Signature, Type, types};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Module, ModuleError};

/// Addresses of entries by those of helpers. They stay for the life of the process.
static ENTRIES: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);

/// The signature of an entry to a helper that takes `params` and returns nothing.
pub(crate) fn signature(params: &[Type]) -> Signature {
    let mut signature = Signature::new(CallConv::PreserveAll);
    signature.params.extend(params.iter().map(|&t| AbiParam::new(t)));
    signature
}

/// The address of an entry to `helper`, which takes `params` and returns nothing.
pub(crate) fn entry(helper: usize, params: &[Type]) -> Result<usize, String> {
    let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&entry) = entries.get(&helper) {
        return Ok(entry);
    }
    let isa = crate::code::isa().map_err(|e| e.to_string())?;
    let module = JITModule::new(JITBuilder::with_isa(isa, cranelift_module::default_libcall_names()));
    let entry = compile(module, helper, params).map_err(|e| e.to_string())?;
    entries.insert(helper, entry);
    Ok(entry)
}

/// Compiles one entry. A module that is dropped leaves its code where it is.
fn compile(mut module: JITModule, helper: usize, params: &[Type]) -> Result<usize, Box<ModuleError>> {
    let mut context = module.make_context();
    context.func.signature = signature(params);
    let mut builder_context = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut context.func, &mut builder_context);
    let block = b.create_block();
    b.append_block_params_for_function_params(block);
    b.switch_to_block(block);
    let args = b.block_params(block).to_vec();
    let mut callee = signature(params);
    callee.call_conv = CallConv::SystemV;
    let callee = b.import_signature(callee);
    let address = b.ins().iconst(types::I64, helper as i64);
    b.ins().call_indirect(callee, address, &args);
    b.ins().return_(&[]);
    b.seal_all_blocks();
    b.finalize(module.target_config());
    let id = module.declare_anonymous_function(&context.func.signature)?;
    module.define_function(id, &mut context)?;
    module.finalize_definitions()?;
    Ok(module.get_finalized_function(id).addr())
}
