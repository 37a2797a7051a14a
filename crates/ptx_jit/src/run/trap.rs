//! Faults of machine code: one SIGSEGV handler for the process.
//!
//! A page that a GPU address space does not map is inaccessible in its window. When a CTA touches it, the handler makes
//! the CTA's coroutine return an exception in place of going on. Writes to sparse pages fault as well; the handler performs
//! them ([`store`]), and the CTA goes on. Any other fault goes to the handler that was there before.

use std::cell::Cell;
use std::ptr;
use std::sync::Once;

use corosensei::trap::CoroutineTrapHandler;
use hostmem::{Chain, Window};
use ptx::launch::{Access, AccessError, Exception, Step};

use super::stack::{GUARD_BYTES, STACK_BYTES};
use super::store::{self, Performed};

/// What runs on this thread.
pub(crate) struct Current {
    pub(crate) handler: CoroutineTrapHandler<Step>,
    pub(crate) window: *const Window,
    pub(crate) window_lo: u64,
    pub(crate) atomic: *const u32,
    /// Behind the last byte of the CTA's stack.
    pub(crate) stack_base: usize,
    /// What has ended it.
    pub(crate) fault: Cell<Option<Fault>>,
}

/// A fault that has ended a CTA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// Host address of the first byte that could not be accessed.
    pub(crate) address: u64,
    registers: [i64; 23],
}

impl Fault {
    /// Address of the instruction.
    pub(crate) fn instruction(&self) -> u64 {
        self.registers[libc::REG_RIP as usize].cast_unsigned()
    }

    /// What a general register held, by its number in instructions.
    pub(crate) fn register(&self, number: usize) -> Option<u64> {
        let &place = store::GENERAL.get(number)?;
        Some(self.registers[place as usize].cast_unsigned())
    }
}

thread_local! {
    static CURRENT: Cell<*const Current> = const { Cell::new(ptr::null()) };
    static HAS_STACK: Cell<bool> = const { Cell::new(false) };
}

/// A stack pointer so far below the beginning of a CTA's stack is still that CTA's.
const MAX_STEP: usize = 64 << 20;
/// Bytes behind a window that are never mapped; accesses are checked to begin inside.
const GUARD: u64 = 1 << 20;
/// Bytes of a signal stack.
const SIGNAL_STACK: usize = 64 << 10;

static CHAIN: Chain = Chain::new(on_fault);
static INSTALLED: Once = Once::new();

/// Runs `f` while faults belong to `current`.
pub(crate) fn guarded<R>(current: &Current, f: impl FnOnce() -> R) -> R {
    prepare();
    let before = CURRENT.replace(current);
    let result = f();
    CURRENT.set(before);
    result
}

/// Installs the handler, and a signal stack for this thread if it has none.
fn prepare() {
    INSTALLED.call_once(|| CHAIN.install());
    if HAS_STACK.replace(true) {
        return;
    }
    // SAFETY: an all-zero stack_t is a valid one.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: asks only.
    unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) };
    if stack.ss_flags & libc::SS_DISABLE != 0 {
        // The stack must live as long as the thread, whose end cannot be hooked safely here: it is leaked. Threads that
        // Rust started have one already, which is small, but enough; others' are theirs.
        let memory = Box::leak(vec![0_u8; SIGNAL_STACK].into_boxed_slice());
        stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: SIGNAL_STACK };
        // SAFETY: the memory is never freed.
        unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) };
    }
}

/// Bit of the page fault's error code: it was a write.
const WRITE: i64 = 2;

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let current = CURRENT.get();
    let user: *mut libc::ucontext_t = context.cast();
    if !current.is_null() {
        // SAFETY: set by `guarded` on this thread, which is still in it.
        let current = unsafe { &*current };
        // SAFETY: the kernel passes a valid context.
        let machine = unsafe { &mut (*user).uc_mcontext };
        let registers = &mut machine.gregs;
        // SAFETY: the kernel passes a valid siginfo.
        let info = unsafe { &*info };
        // SAFETY: it is that of a fault, which has an address.
        let mut address = unsafe { info.si_addr() }.addr() as u64;
        let stack = registers[libc::REG_RSP as usize] as u64;
        let code = registers[libc::REG_ERR as usize];
        // SAFETY: the grid, which owns the window, outlives its CTAs.
        let window = unsafe { &*current.window };
        if let Some(mut exception) = classify(current, window, address, stack, code) {
            if let Exception::Access { address: told, .. } = &mut exception
                && code & WRITE != 0
            {
                // Code of a CTA that touches the window raw holds no lock, so this may take the window's.
                match store::perform(machine, window) {
                    Performed::Done => return,
                    Performed::Refused(offset) => {
                        *told = current.window_lo.wrapping_add(offset);
                        address = (window.address() as u64).wrapping_add(offset);
                    }
                    Performed::Unknown => {}
                }
            }
            let registers = &mut machine.gregs;
            current.fault.set(Some(Fault { address, registers: *registers }));
            // SAFETY: the stack pointer was checked to be inside the coroutine; what machine code and helpers leave behind
            // needs no dropping.
            let to = unsafe { current.handler.setup_trap_handler(move || Step::Exception(exception)) };
            registers[libc::REG_RIP as usize] = to.rip.cast_signed();
            registers[libc::REG_RSP as usize] = to.rsp.cast_signed();
            registers[libc::REG_RBP as usize] = to.rbp.cast_signed();
            registers[libc::REG_RDI as usize] = to.rdi.cast_signed();
            registers[libc::REG_RSI as usize] = to.rsi.cast_signed();
            return;
        }
    }
    // SAFETY: what the kernel passed.
    unsafe { CHAIN.pass_on(signal, info, context) };
}

/// The exception that a fault at `address` with this stack pointer means, if it is a CTA's.
fn classify(current: &Current, window: &Window, address: u64, stack: u64, code: i64) -> Option<Exception> {
    if !current.handler.stack_ptr_in_bounds(stack as usize) {
        // Stepped over the guard, which nothing should be able to: whoever it was, it ran as this CTA. Its stack's top, where
        // the way back is, is still there.
        let below = current.stack_base.wrapping_sub(stack as usize);
        return (below < MAX_STEP).then_some(Exception::Illegal);
    }
    let depth = current.stack_base.wrapping_sub(address as usize);
    let in_guard = (STACK_BYTES..=STACK_BYTES + GUARD_BYTES).contains(&depth);
    if in_guard || current.stack_base - (stack as usize) > STACK_BYTES {
        return Some(Exception::Illegal);
    }
    let offset = address.wrapping_sub(window.address() as u64);
    if offset < window.bytes() + GUARD {
        // SAFETY: the context is live while its CTA runs.
        let atomic = unsafe { current.atomic.read_volatile() } != 0;
        let access = match (atomic, code & WRITE != 0) {
            (true, _) => Access::Atomic,
            (false, true) => Access::Write,
            (false, false) => Access::Read,
        };
        let address = current.window_lo.wrapping_add(offset);
        return Some(Exception::Access { address, access, error: AccessError::Unmapped });
    }
    // Near the stack pointer, and yet a fault: the CTA's stack is used up.
    (address.abs_diff(stack) < 64 << 10).then_some(Exception::Illegal)
}

#[cfg(test)]
mod tests {
    use corosensei::stack::Stack;
    use corosensei::{Coroutine, CoroutineResult, Yielder};

    use super::*;
    use crate::run::stack::CtaStack;

    /// What becomes of code that writes so far below its stack pointer.
    fn step(below: usize) -> Option<Step> {
        let stack = CtaStack::new().unwrap();
        let stack_base = stack.base().get();
        let mut coroutine = Coroutine::with_stack(stack, move |_: &Yielder<(), ()>, ()| {
            let mut here = 0_u8;
            let here = ptr::from_mut(std::hint::black_box(&mut here)).expose_provenance();
            let at: *mut u8 = ptr::with_exposed_provenance_mut(here - below);
            // SAFETY: inside the stack or its guard, whose pages nobody can write.
            unsafe { at.write_volatile(1) };
            Step::Done
        });
        let window = Window::reserve(1 << 20).unwrap();
        let current = Current {
            handler: coroutine.trap_handler(),
            window: &raw const window,
            window_lo: 0,
            atomic: &0,
            stack_base,
            fault: Cell::new(None),
        };
        match guarded(&current, || coroutine.resume(())) {
            CoroutineResult::Return(step) => Some(step),
            CoroutineResult::Yield(()) => None,
        }
    }

    /// The largest step that a frame can make from the end of the stack does not leave the guard, and ends the CTA.
    #[test]
    fn the_guard_is_wider_than_any_step() {
        assert_eq!(step(STACK_BYTES / 2), Some(Step::Done));
        for below in [STACK_BYTES, STACK_BYTES + crate::MAX_STACK_BYTES as usize, STACK_BYTES + GUARD_BYTES - 4096] {
            assert_eq!(step(below), Some(Step::Exception(Exception::Illegal)), "{below} bytes below");
        }
    }
}
