//! What machine code calls: the lane-by-lane twins of its fast paths, and everything rare.
//!
//! All run on the CTA's stack and may be left for good at any access to tenant memory (a fault) and in [`raise`]: they own
//! nothing that must be dropped while they do either.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ptx::builtins;
use ptx::children;
use ptx::ir::{AtomOp, Builtin, Op, Space, Ty};
use ptx::launch::{
    Access, AccessError, CLUSTER_WINDOW_BYTES, Control, Exception, GlobalMemory, LOCAL_WINDOW, LOCAL_WINDOW_BYTES,
    SHARED_WINDOW, SHARED_WINDOW_BYTES,
};
use ptx::math::{self, int};

use crate::abi::context::{self, Context};
use crate::abi::{Attached, Helper, Key, OfLine, Resolve, Run, Site};

/// Where machine code finds a helper.
pub(crate) fn address(helper: Helper) -> usize {
    let function = match helper {
        Helper::Eval => eval as *const (),
        Helper::Resolve => resolve as *const (),
        Helper::Load => load as *const (),
        Helper::Store => store as *const (),
        Helper::Collect => collect as *const (),
        Helper::Scatter => scatter as *const (),
        Helper::Atomic => atomic as *const (),
        Helper::CopyAsync => copy_async as *const (),
        Helper::Service => service as *const (),
        Helper::Joint => super::joint::run as *const (),
        Helper::Matrix => super::matrix::run as *const (),
        Helper::Image => super::image::run as *const (),
        Helper::Transfer => super::transfer::run as *const (),
        Helper::Preempt => preempt as *const (),
        Helper::Clock => clock as *const (),
        Helper::GlobalTimer => global_timer as *const (),
    };
    function.expose_provenance()
}

/// What machine code names by a key.
pub(crate) fn attached<'a, T>(ctx: *mut Context, key: u32, list: impl Fn(&'a Attached) -> &'a Vec<OfLine<T>>) -> &'a T {
    let key = Key(key);
    // SAFETY: the context is live while its CTA runs.
    let regions = unsafe { (*ctx).attached };
    // SAFETY: the code outlives its CTAs.
    let regions = unsafe { &*regions };
    let found = regions.get(key.region()).and_then(|region| list(region).get(key.index()));
    let OfLine { line, what } = found.unwrap_or_else(|| raise(ctx, Exception::Illegal));
    // SAFETY: as above.
    unsafe { (*ctx).line = *line };
    // SAFETY: as above.
    unsafe { (*ctx).thread = context::SEVERAL };
    // SAFETY: as above.
    unsafe { (*ctx).run_bytes = 0 };
    what
}

/// What the helper does from here on it does for a thread.
pub(super) fn is_at(ctx: *mut Context, thread: u64) {
    // SAFETY: the context is live while its CTA runs.
    unsafe { (*ctx).thread = thread as u32 };
}

/// Rows of lanes in the scratch slot.
struct Rows {
    base: *mut u64,
    lanes: usize,
}

impl Rows {
    fn get(&self, row: usize, lane: usize) -> u64 {
        // SAFETY: machine code reserves eight rows of `lanes` words.
        let at = unsafe { self.base.add(row * self.lanes + lane) };
        // SAFETY: as above.
        unsafe { at.read() }
    }
    fn set(&self, row: usize, lane: usize, value: u64) {
        // SAFETY: machine code reserves eight rows of `lanes` words.
        let at = unsafe { self.base.add(row * self.lanes + lane) };
        // SAFETY: as above.
        unsafe { at.write(value) }
    }
}

/// The lanes of `bits`, in order.
pub(super) fn active(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = bits.trailing_zeros() as usize;
        // Zero stays zero.
        bits &= bits.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}

/// Evaluates a computing operation for `lanes` lanes: rows 0 to 3 are operands, 4 and 5 results.
/// Rows that are not `present` are zero.
pub(crate) extern "C" fn eval(ctx: *mut Context, op: u32, rows: *mut u64, lanes: u64, present: u64) {
    let op = attached(ctx, op, |of| &of.ops);
    let rows = Rows { base: rows, lanes: lanes as usize };
    for lane in 0..rows.lanes {
        let operands = [0, 1, 2, 3].map(|row| if present >> row & 1 != 0 { rows.get(row, lane) } else { 0 });
        let results = math::eval(op, operands).unwrap_or([0, 0]);
        rows.set(4, lane, results[0]);
        rows.set(5, lane, results[1]);
    }
}

/// Ends the CTA with an exception: suspends for good.
pub(crate) fn raise(ctx: *mut Context, exception: Exception) -> ! {
    // SAFETY: the context is live while its CTA runs.
    let context = unsafe { &mut *ctx };
    context.exception = Some(exception);
    loop {
        context.suspend.suspend();
    }
}

/// Suspends the CTA, to be resumed later.
pub(crate) extern "C" fn preempt(ctx: *mut Context) {
    // SAFETY: the context is live while its CTA runs.
    let context = unsafe { &*ctx };
    context.suspend.suspend();
}

/// Suspends the CTA if that is asked for: in what takes long without a loop of the kernel's own.
pub(crate) fn poll(ctx: *mut Context) {
    // SAFETY: the context is live while its CTA runs.
    let control = unsafe { (*ctx).control };
    let control: *mut u32 = std::ptr::with_exposed_provenance_mut(control as usize);
    // SAFETY: the grid's control word outlives its CTAs, and is changed atomically.
    let word = unsafe { AtomicU32::from_ptr(control) };
    if word.load(Ordering::Relaxed) != Control::RUN {
        preempt(ctx);
    }
}

/// Nanoseconds of the wall clock.
pub(crate) extern "C" fn global_timer() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// A cycle counter.
pub(crate) extern "C" fn clock() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// As [`is_at`], by the lane of the chunk that runs, or of the warp whose lanes operate together.
pub(super) fn is_at_lane(ctx: *mut Context, lane: usize) {
    // SAFETY: the context is live while its CTA runs.
    let first = unsafe { (*ctx).first_thread };
    is_at(ctx, u64::from(first) + lane as u64);
}

/// Host address of `size` bytes at an address of `space`, as thread `thread` sees it.
fn locate(context: &Context, space: Space, address: u64, size: u64, thread: u64) -> Result<*mut u8, AccessError> {
    if size.is_power_of_two() && !address.is_multiple_of(size) {
        return Err(AccessError::Misaligned);
    }
    locate_bytes(context, space, address, size, thread)
}

/// As [`locate`], at any address.
fn locate_bytes(context: &Context, space: Space, address: u64, size: u64, thread: u64) -> Result<*mut u8, AccessError> {
    let inside = |offset: u64, bytes: u64| size <= bytes && offset <= bytes - size;
    let host = match space {
        Space::Shared if inside(address, context.shared_bytes) => context.shared + address,
        Space::Shared => return Err(AccessError::Shared),
        Space::Local if inside(address, context.local_bytes) => context.local + thread * context.local_bytes + address,
        Space::Local => return Err(AccessError::Local),
        Space::Param => {
            if !inside(address, context.param_bytes) {
                return Err(AccessError::Param);
            }
            context.params + address
        }
        Space::Generic if address.wrapping_sub(SHARED_WINDOW) < CLUSTER_WINDOW_BYTES => {
            let ((start, offset), bytes) = shared_window(context, address)?;
            if !inside(offset, bytes) {
                return Err(AccessError::Shared);
            }
            start + offset
        }
        Space::Generic if address.wrapping_sub(LOCAL_WINDOW) < LOCAL_WINDOW_BYTES => {
            return locate_bytes(context, Space::Local, address - LOCAL_WINDOW, size, thread);
        }
        Space::Generic | Space::Global | Space::Const => {
            if !inside(address.wrapping_sub(context.window_lo), context.window_bytes) {
                return Err(AccessError::OutOfWindow);
            }
            address.wrapping_add(context.delta)
        }
    };
    Ok(std::ptr::with_exposed_provenance_mut(host as usize))
}

/// Whose shared memory a generic address in one of the windows is in: where that begins, the offset in it, and its bytes.
fn shared_window(context: &Context, address: u64) -> Result<((u64, u64), u64), AccessError> {
    let offset = address - SHARED_WINDOW;
    let (window, offset) = (offset / SHARED_WINDOW_BYTES, offset % SHARED_WINDOW_BYTES);
    let own = window == 0 || window == 1 + u64::from(context.fixed[context::CLUSTER_RANK]);
    let (start, bytes) = if own {
        (context.shared, context.shared_bytes)
    } else {
        // SAFETY: what a cluster's CTAs share outlives them, and none of the others runs meanwhile.
        let cluster = unsafe { context.cluster.as_ref() }.ok_or(AccessError::Shared)?;
        cluster.memory(window - 1).ok_or(AccessError::Shared)?
    };
    Ok(((start, offset), bytes))
}

/// As [`locate`], but raises. What follows is done for the thread.
pub(super) fn reach(ctx: *mut Context, space: Space, address: u64, size: u64, thread: u64, access: Access) -> *mut u8 {
    is_at(ctx, thread);
    // SAFETY: the context is live while its CTA runs.
    let found = locate(unsafe { &*ctx }, space, address, size, thread);
    found_or_raise(ctx, found, address, access)
}

/// As [`reach`], for so many bytes at any generic address.
pub(super) fn reach_bytes(ctx: *mut Context, address: u64, size: u64, thread: u64, access: Access) -> *mut u8 {
    is_at(ctx, thread);
    // SAFETY: the context is live while its CTA runs.
    let found = locate_bytes(unsafe { &*ctx }, Space::Generic, address, size, thread);
    found_or_raise(ctx, found, address, access)
}

/// As [`reach`] in global memory, for whoever it is done.
pub(super) fn reach_global(ctx: *mut Context, address: u64, size: u64, access: Access) -> *mut u8 {
    // SAFETY: the context is live while its CTA runs.
    let found = locate(unsafe { &*ctx }, Space::Global, address, size, 0);
    found_or_raise(ctx, found, address, access)
}

fn found_or_raise(ctx: *mut Context, found: Result<*mut u8, AccessError>, address: u64, access: Access) -> *mut u8 {
    found.unwrap_or_else(|error| raise(ctx, Exception::Access { address, access, error }))
}

/// Finds the host address for an access that all lanes share; raises if there is none.
pub(crate) extern "C" fn resolve(ctx: *mut Context, site: u32, address: u64, how: u64) {
    let site = attached(ctx, site, |of| &of.sites);
    let Resolve { write, all } = Resolve::from_bits(how);
    let access = if write { Access::Write } else { Access::Read };
    let size = u64::from(site.ty.bytes() * site.count);
    if all {
        is_at_lane(ctx, 0);
    }
    // SAFETY: the context is live while its CTA runs.
    let found = locate(unsafe { &*ctx }, site.space, address, size, 0);
    let host = found_or_raise(ctx, found, address, access).addr() as u64;
    // SAFETY: as above.
    unsafe { (*ctx).resolved = host };
}

/// One element, zero-extended.
pub(super) fn read_element(at: *const u8, ty: Ty) -> u64 {
    match ty.bytes() {
        1 => {
            // SAFETY: inside its space; a page that is not there is a fault of the CTA.
            unsafe { at.read_volatile() }.into()
        }
        2 => {
            // SAFETY: as above.
            unsafe { at.cast::<u16>().read_volatile() }.into()
        }
        4 => {
            // SAFETY: as above.
            unsafe { at.cast::<u32>().read_volatile() }.into()
        }
        _ => {
            // SAFETY: as above.
            unsafe { at.cast::<u64>().read_volatile() }
        }
    }
}

pub(super) fn write_element(at: *mut u8, ty: Ty, value: u64) {
    match ty.bytes() {
        1 => {
            // SAFETY: inside its space; a page that is not there is a fault of the CTA.
            unsafe { at.write_volatile(value as u8) }
        }
        2 => {
            // SAFETY: as above.
            unsafe { at.cast::<u16>().write_volatile(value as u16) }
        }
        4 => {
            // SAFETY: as above.
            unsafe { at.cast::<u32>().write_volatile(value as u32) }
        }
        _ => {
            // SAFETY: as above.
            unsafe { at.cast::<u64>().write_volatile(value) }
        }
    }
}

/// Extends an element to 64 bits by its type.
fn extended(ty: Ty, value: u64) -> u64 {
    if !ty.is_signed() {
        return value;
    }
    let unused = 64 - ty.bits();
    ((value << unused).cast_signed() >> unused).cast_unsigned()
}

/// Copies what the active lanes have at the addresses of a run to the context's elements.
pub(crate) extern "C" fn collect(ctx: *mut Context, run: u32, bits: u32, thread: u32, b: u32, c: u64) {
    copy_run(ctx, run, bits, thread, (b, c), Access::Read);
}

/// Copies the context's elements of the active lanes to the addresses of a run.
pub(crate) extern "C" fn scatter(ctx: *mut Context, run: u32, bits: u32, thread: u32, b: u32, c: u64) {
    copy_run(ctx, run, bits, thread, (b, c), Access::Write);
}

/// Where the elements of the active lanes lie, each behind the one before it unless the index wraps, if these lanes are neighbours,
/// it does not, and all may be accessed: the host address of the first one's, which lane that is, and how many lanes.
fn side_by_side(
    ctx: *mut Context,
    site: &Site,
    bits: u32,
    address: &dyn Fn(usize) -> u64,
) -> Option<(*mut u8, usize, usize)> {
    let first = bits.trailing_zeros();
    let count = bits.checked_shr(first)?.trailing_ones();
    if count != bits.count_ones() {
        return None;
    }
    let (first, count) = (first as usize, count as usize);
    let size = u64::from(site.ty.bytes() * site.count);
    let (low, high) = (address(first), address(first + count - 1));
    // Each thread has local memory of its own.
    let local = |address: u64| site.space == Space::Generic && address.wrapping_sub(LOCAL_WINDOW) < LOCAL_WINDOW_BYTES;
    if high.checked_sub(low) != Some(size * (count as u64 - 1)) || local(low) || local(high) {
        return None;
    }
    // SAFETY: the context is live while its CTA runs.
    let context = unsafe { &*ctx };
    let last = locate(context, site.space, high, size, 0).ok()?;
    let at = locate(context, site.space, low, size, 0).ok()?;
    // A space is one range, so what lies between is inside, too.
    (last.addr() - at.addr() == (high - low) as usize).then_some((at, first, count))
}

/// Copies `count` elements of a type that lie side by side, one after another; small ones several at once, as machine code does.
fn copy_elements(from: *const u8, to: *mut u8, ty: Ty, count: usize) {
    fn each<T: Copy>(from: *const u8, to: *mut u8, bytes: std::ops::Range<usize>) {
        for at in bytes.step_by(size_of::<T>()) {
            // SAFETY: callers name elements inside their space; a page that is not there is a fault of the CTA.
            let from = unsafe { from.add(at) }.cast::<T>();
            // SAFETY: as above.
            let to = unsafe { to.add(at) }.cast::<T>();
            // SAFETY: as above.
            let value = unsafe { from.read_unaligned() };
            // SAFETY: as above.
            unsafe { to.write_unaligned(value) };
        }
    }
    let bytes = count * ty.bytes() as usize;
    let whole = bytes - bytes % size_of::<u128>();
    each::<u128>(from, to, 0..whole);
    match ty.bytes() {
        1 => each::<u8>(from, to, whole..bytes),
        2 => each::<u16>(from, to, whole..bytes),
        4 => each::<u32>(from, to, whole..bytes),
        _ => each::<u64>(from, to, whole..bytes),
    }
}

fn copy_run(ctx: *mut Context, run: u32, bits: u32, thread: u32, (b, c): (u32, u64), access: Access) {
    let Run { site, stride, k, signed } = attached(ctx, run, |of| &of.runs);
    let size = u64::from(site.ty.bytes() * site.count);
    // SAFETY: the context is live while its CTA runs.
    let elements: *mut u8 = unsafe { &raw mut (*ctx).elements }.cast();
    let address = |lane: usize| {
        let index = b.wrapping_add(stride.cast_unsigned().wrapping_mul(lane as u32));
        let index = if *signed { i64::from(index.cast_signed()) } else { index.into() };
        c.wrapping_add(index.wrapping_mul(*k).cast_unsigned())
    };
    if i64::from(*stride).checked_mul(*k) == Some(size.cast_signed())
        && let Some((at, first, count)) = side_by_side(ctx, site, bits, &address)
    {
        // SAFETY: there are 16 bytes for each of 32 lanes.
        let elements = unsafe { elements.add(first * size as usize) };
        let (from, to) = if access == Access::Read { (at, elements) } else { (elements, at) };
        // SAFETY: the context is live while its CTA runs.
        unsafe { (*ctx).run = at.addr() as u64 - first as u64 * size };
        // SAFETY: as above.
        unsafe { (*ctx).run_bytes = size };
        copy_elements(from, to, site.ty, count * site.count as usize);
        return;
    }
    for lane in active(bits) {
        let address = address(lane);
        let at = reach(ctx, site.space, address, size, u64::from(thread) + lane as u64, access);
        for offset in (0..size as usize).step_by(site.ty.bytes() as usize) {
            // SAFETY: the whole access lies inside its space.
            let memory = unsafe { at.add(offset) };
            // SAFETY: there are 16 bytes for each of 32 lanes.
            let element = unsafe { elements.add(lane * size as usize + offset) };
            let (from, to) = if access == Access::Read { (memory, element) } else { (element, memory) };
            write_element(to, site.ty, read_element(from, site.ty));
        }
    }
}

/// A load, lane by lane: addresses in a row of their own, results in rows of 64-bit words.
pub(crate) extern "C" fn load(
    ctx: *mut Context,
    site: u32,
    bits: u32,
    thread: u32,
    addresses: *mut u64,
    out: *mut u64,
) {
    let site: &Site = attached(ctx, site, |of| &of.sites);
    let lanes = (out.addr() - addresses.addr()) / 8;
    let (from, to) = (Rows { base: addresses, lanes }, Rows { base: out, lanes });
    for lane in 0..lanes {
        if bits >> lane & 1 == 0 {
            for element in 0..site.count as usize {
                to.set(element, lane, 0);
            }
        }
    }
    let size = u64::from(site.ty.bytes() * site.count);
    for lane in active(bits) {
        let at = reach(ctx, site.space, from.get(0, lane), size, u64::from(thread) + lane as u64, Access::Read);
        for element in 0..site.count as usize {
            // SAFETY: the whole access lies inside its space.
            let at = unsafe { at.add(element * site.ty.bytes() as usize) };
            to.set(element, lane, extended(site.ty, read_element(at, site.ty)));
        }
    }
}

/// A store, lane by lane.
pub(crate) extern "C" fn store(
    ctx: *mut Context,
    site: u32,
    bits: u32,
    thread: u32,
    addresses: *mut u64,
    values: *mut u64,
) {
    let site: &Site = attached(ctx, site, |of| &of.sites);
    let lanes = (values.addr() - addresses.addr()) / 8;
    let (to, from) = (Rows { base: addresses, lanes }, Rows { base: values, lanes });
    let size = u64::from(site.ty.bytes() * site.count);
    for lane in active(bits) {
        let at = reach(ctx, site.space, to.get(0, lane), size, u64::from(thread) + lane as u64, Access::Write);
        for element in 0..site.count as usize {
            // SAFETY: the whole access lies inside its space.
            let at = unsafe { at.add(element * site.ty.bytes() as usize) };
            write_element(at, site.ty, from.get(element, lane));
        }
    }
}

/// Atomically replaces the element by `f` of it; returns the old one.
pub(super) fn update(at: *mut u8, bytes: u32, mut f: impl FnMut(u64) -> u64) -> u64 {
    let order = Ordering::SeqCst;
    match bytes {
        2 => {
            // SAFETY: aligned and inside its space, which other threads access through atomics and plain accesses of
            // machine code only.
            let word = unsafe { AtomicU16::from_ptr(at.cast()) };
            word.fetch_update(order, order, |v| Some(f(v.into()) as u16)).unwrap_or(0).into()
        }
        4 => {
            // SAFETY: as above.
            let word = unsafe { AtomicU32::from_ptr(at.cast()) };
            word.fetch_update(order, order, |v| Some(f(v.into()) as u32)).unwrap_or(0).into()
        }
        _ => {
            // SAFETY: as above.
            let word = unsafe { AtomicU64::from_ptr(at.cast()) };
            word.fetch_update(order, order, |v| Some(f(v))).unwrap_or(0)
        }
    }
}

/// An atomic: row 0 addresses, 1 and 2 operands, 3 results.
pub(crate) extern "C" fn atomic(ctx: *mut Context, op: u32, bits: u32, thread: u32, rows: *mut u64, lanes: u64) {
    let Op::Atom { op, space, ty, ftz, .. } = attached(ctx, op, |of| &of.ops) else { return };
    let rows = Rows { base: rows, lanes: lanes as usize };
    for lane in 0..rows.lanes {
        if bits >> lane & 1 == 0 {
            rows.set(3, lane, 0);
        }
    }
    let mask = int::mask(*ty);
    // SAFETY: the context is live while its CTA runs.
    unsafe { (*ctx).atomic = 1 };
    for lane in active(bits) {
        let thread = u64::from(thread) + lane as u64;
        let address = rows.get(0, lane);
        let at = reach(ctx, *space, address, ty.bytes().into(), thread, Access::Atomic);
        let ftz = *ftz && *space != Space::Shared && address < SHARED_WINDOW;
        let (b, c) = (rows.get(1, lane) & mask, rows.get(2, lane) & mask);
        if let (AtomOp::Add, false, 4) = (*op, ty.is_float(), ty.bytes()) {
            // SAFETY: as in `update`.
            let word = unsafe { AtomicU32::from_ptr(at.cast()) };
            rows.set(3, lane, word.fetch_add(b as u32, Ordering::SeqCst).into());
            continue;
        }
        let old = update(at, ty.bytes(), |old| math::atomic(*op, *ty, ftz, old, b, c).unwrap_or(old) & mask);
        rows.set(3, lane, old);
    }
    // SAFETY: as above.
    unsafe { (*ctx).atomic = 0 };
}

/// `cp.async`: row 0 shared offsets, 1 global addresses, 2 numbers of bytes to copy.
pub(crate) extern "C" fn copy_async(ctx: *mut Context, op: u32, bits: u32, thread: u32, rows: *mut u64, lanes: u64) {
    let Op::CpAsync { bytes, src_bytes, .. } = attached(ctx, op, |of| &of.ops) else { return };
    let rows = Rows { base: rows, lanes: lanes as usize };
    let size = u64::from(*bytes);
    let word = if size == 4 { Ty::U32 } else { Ty::U64 };
    for lane in active(bits) {
        let thread = u64::from(thread) + lane as u64;
        let to = reach(ctx, Space::Shared, rows.get(0, lane), size, thread, Access::Write);
        let wanted = if src_bytes.is_some() { rows.get(2, lane).min(size) } else { size };
        if wanted == size && matches!(size, 4 | 8 | 16) {
            // Both ends are multiples of the size: `reach` has seen to it.
            let from = reach(ctx, Space::Generic, rows.get(1, lane), size, thread, Access::Read);
            let low = read_element(from, word);
            if size == 16 {
                // SAFETY: the whole access lies inside its space.
                let high = read_element(unsafe { from.add(8) }, word);
                // SAFETY: the whole access lies inside shared memory.
                write_element(unsafe { to.add(8) }, word, high);
            }
            write_element(to, word, low);
            continue;
        }
        let mut buffer = [0_u8; 16];
        if wanted > 0 {
            let from = reach(ctx, Space::Generic, rows.get(1, lane), size, thread, Access::Read);
            for (i, byte) in buffer.iter_mut().enumerate().take(wanted as usize) {
                // SAFETY: the whole access lies inside its space.
                let at = unsafe { from.add(i) };
                *byte = read_element(at, Ty::U8) as u8;
            }
        }
        for (i, &byte) in buffer.iter().enumerate().take(size as usize) {
            // SAFETY: the whole access lies inside shared memory.
            let at = unsafe { to.add(i) };
            write_element(at, Ty::U8, byte.into());
        }
    }
}

/// Memory as one thread sees it, for builtins; accesses are checked against the mappings, so they never fault.
struct ThreadMemory<'a> {
    context: &'a Context,
    thread: u64,
}

impl ThreadMemory<'_> {
    /// The offset in the window, or the host address of shared or local memory.
    fn place(&self, address: u64, bytes: u64) -> Result<Result<u64, *mut u8>, AccessError> {
        let window = |lo: u64, size: u64| address.wrapping_sub(lo) < size;
        if window(SHARED_WINDOW, CLUSTER_WINDOW_BYTES) {
            let ((start, offset), there) = shared_window(self.context, address)?;
            if bytes > there || offset > there - bytes {
                return Err(AccessError::Shared);
            }
            return Ok(Err(std::ptr::with_exposed_provenance_mut((start + offset) as usize)));
        }
        if window(LOCAL_WINDOW, LOCAL_WINDOW_BYTES) {
            let offset = address - LOCAL_WINDOW;
            if bytes > self.context.local_bytes || offset > self.context.local_bytes - bytes {
                return Err(AccessError::Local);
            }
            let host = self.context.local + self.thread * self.context.local_bytes + offset;
            return Ok(Err(std::ptr::with_exposed_provenance_mut(host as usize)));
        }
        let offset = address.wrapping_sub(self.context.window_lo);
        if bytes > self.context.window_bytes || offset > self.context.window_bytes - bytes {
            return Err(AccessError::OutOfWindow);
        }
        Ok(Ok(offset))
    }

    fn window(&self) -> &hostmem::Window {
        // SAFETY: the grid, which owns the window, outlives its CTAs.
        unsafe { &*self.context.window }
    }
}

/// A window's refusal as an engine reports it.
pub(crate) fn refusal(error: hostmem::WindowError) -> AccessError {
    match error {
        hostmem::WindowError::Unmapped => AccessError::Unmapped,
        hostmem::WindowError::ReadOnly => AccessError::ReadOnly,
        hostmem::WindowError::Misaligned => AccessError::Misaligned,
    }
}

impl GlobalMemory for ThreadMemory<'_> {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        match self.place(address, out.len() as u64)? {
            Ok(offset) => self.window().read(offset, out).map_err(refusal),
            Err(host) => {
                // SAFETY: `place` has checked that the range lies inside the CTA's own memory.
                unsafe { std::ptr::copy_nonoverlapping(host, out.as_mut_ptr(), out.len()) };
                Ok(())
            }
        }
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), AccessError> {
        match self.place(address, data.len() as u64)? {
            Ok(offset) => self.window().write(offset, data).map_err(refusal),
            Err(host) => {
                // SAFETY: `place` has checked that the range lies inside the CTA's own memory.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), host, data.len()) };
                Ok(())
            }
        }
    }

    fn update(&self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<u64, AccessError> {
        match self.place(address, bytes.into())? {
            Ok(offset) => self.window().update(offset, bytes, f).map_err(refusal),
            Err(_) => Err(AccessError::OutOfWindow),
        }
    }
}

/// Builtins, `nanosleep`, `trap`: rows 0 to 5 arguments, 6 results.
pub(crate) extern "C" fn service(ctx: *mut Context, op: u32, bits: u32, thread: u32, rows: *mut u64, lanes: u64) {
    if bits == 0 {
        return;
    }
    let op = attached(ctx, op, |of| &of.ops);
    let builtin = match op {
        Op::Call { builtin, .. } => *builtin,
        Op::Trap => {
            is_at(ctx, u64::from(thread) + u64::from(bits.trailing_zeros()));
            raise(ctx, Exception::Trap)
        }
        _ => return preempt(ctx),
    };
    let rows = Rows { base: rows, lanes: lanes as usize };
    for lane in active(bits) {
        is_at(ctx, u64::from(thread) + lane as u64);
        // A lane may have long texts to print.
        poll(ctx);
        let arg = |i: usize| rows.get(i, lane);
        let outcome = {
            // SAFETY: the context is live while its CTA runs.
            let context = unsafe { &*ctx };
            // SAFETY: the launch outlives its CTAs.
            let driver = unsafe { &*context.launch }.driver;
            // SAFETY: the grid outlives its CTAs.
            let launcher = unsafe { &*context.launcher }.as_deref();
            let memory = ThreadMemory { context, thread: u64::from(thread) + lane as u64 };
            let unreadable = |(address, error)| Exception::Access { address, access: Access::Read, error };
            match builtin {
                Builtin::Vprintf => builtins::vprintf(&memory, driver, arg(0), arg(1))
                    .map(|n| u64::from(n.cast_unsigned()))
                    .map_err(unreadable),
                Builtin::Launch => {
                    children::launch(&memory, launcher, arg(0), arg(1)).map(u64::from).map_err(unreadable)
                }
                Builtin::Copy => Ok(children::copy(launcher, [0, 1, 2, 3, 4].map(arg)).into()),
                Builtin::Fill => Ok(children::fill(launcher, [0, 1, 2, 3].map(arg)).into()),
                Builtin::Malloc => Ok(builtins::malloc(&memory, driver, arg(0))),
                Builtin::Free => {
                    builtins::free(&memory, driver, arg(0));
                    Ok(0)
                }
                Builtin::AssertFail => Err(super::cta::assert_failed(&memory, context, thread + lane as u32, &arg)),
            }
        };
        match outcome {
            Ok(value) => rows.set(6, lane, value),
            Err(exception) => raise(ctx, exception),
        }
    }
}
