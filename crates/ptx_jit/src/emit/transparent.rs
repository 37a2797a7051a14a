//! Entries to helpers that change no register: a call that is rarely made costs the code around it nothing.
//!
//! An ordinary call leaves only six registers as they were, and no vector register; so values would be spilled, in fast
//! paths too, for calls in slow paths beside them.

use cranelift_codegen::Context;
use cranelift_codegen::ir::{AbiParam, InstBuilder, Signature, Type};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

use super::{import, ordinary};
use crate::abi::Helper;

/// The signature of an entry to a helper that takes `params` and returns nothing.
pub(crate) fn signature(params: &[Type]) -> Signature {
    let mut signature = Signature::new(CallConv::PreserveAll);
    signature.params.extend(params.iter().map(|&t| AbiParam::new(t)));
    signature
}

/// Makes the function in `context` an entry to `helper`, which takes `params` and returns nothing.
pub(crate) fn emit_entry(isa: &dyn TargetIsa, context: &mut Context, helper: Helper, params: &[Type]) {
    context.func.signature = signature(params);
    let mut builder_context = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut context.func, &mut builder_context);
    let block = b.create_block();
    b.append_block_params_for_function_params(block);
    b.switch_to_block(block);
    let args = b.block_params(block).to_vec();
    let callee = import(b.func, helper, false, ordinary(params, &[]));
    b.ins().call(callee, &args);
    b.ins().return_(&[]);
    b.seal_all_blocks();
    b.finalize(isa.frontend_config());
}
