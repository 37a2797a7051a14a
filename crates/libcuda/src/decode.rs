//! What a C caller passes, as types whose use is safe.
//!
//! The parameters of the shims are these types themselves: each is a pointer to the C caller and a checked value to us.
//! A value of one of them exists only because a C program called a function of the driver API, and with that promised
//! what the API says of the argument: null, or valid for as many elements as the function's other arguments say, until
//! the call returns. The first element can be read and written on that promise alone. How many more there are, and what an
//! address inside a structure leads to, only the function knows that was called: there, what is trusted is `unsafe`.

use std::ffi::{CStr, c_char};

use cuda_abi::{CUdeviceptr, CUresult, HostAddr};
use gpu::DevAddr;
use hostmem::HostRange;

use crate::entry::{Answer, Refusal};

/// A pointer to where results go; may be null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Refuses null with `INVALID_VALUE`.
    pub(crate) fn required(self) -> Answer {
        if self.0.is_null() { Err(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE)) } else { Ok(()) }
    }

    /// The pointer as a number.
    pub(crate) fn address(self) -> HostAddr {
        HostAddr(self.0.expose_provenance() as u64)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// What is there before.
    pub(crate) fn input(self) -> In<T> {
        In(self.0.cast_const())
    }

    /// Stores a result that is of the interface's type already.
    pub(crate) fn set_plain(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the first element is there (module text); alignment is not asked of C programs.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Null.
    pub(crate) fn none() -> Out<T> {
        Out(std::ptr::null_mut())
    }

    /// Stores a result; nothing happens if the caller does not want it.
    pub(crate) fn set<V: Encode<T>>(self, value: V) {
        // SAFETY: the first element is there (module text).
        unsafe { self.set_at(0, value) }
    }

    /// Stores element `index` of an array of results.
    ///
    /// # Safety
    /// The caller promised an array with at least this element, or null.
    pub(crate) unsafe fn set_at<V: Encode<T>>(self, index: usize, value: V) {
        if !self.0.is_null() {
            // SAFETY: the element is there, as our caller knows.
            let place = unsafe { self.0.add(index) };
            // SAFETY: as above; alignment is not asked of C programs.
            unsafe { place.write_unaligned(value.encode()) }
        }
    }
}

/// The result of a function of `calls`, which keeps no pointer.
pub(crate) fn result<T: Copy + Default>(call: impl FnOnce(Out<T>) -> Answer) -> Result<T, Refusal> {
    let mut place = T::default();
    call(Out(&raw mut place)).map(|()| place)
}

/// Hands a value to a function of `calls`, which keeps no pointer.
pub(crate) fn given<T: Copy>(value: &T, call: impl FnOnce(In<T>) -> Answer) -> Answer {
    call(In(&raw const *value))
}

/// A number as memory.
pub(crate) fn bytes_of(value: &u32, call: impl FnOnce(HostRange<'_>) -> Answer) -> Answer {
    // SAFETY: it is only read, while the borrow lasts.
    call(unsafe { HostRange::new((&raw const *value).expose_provenance(), size_of::<u32>()) })
}

/// Stores where some GPU memory begins, and its bytes.
pub(crate) fn set_run(address: Out<CUdeviceptr>, bytes: Out<usize>, run: (DevAddr, u64)) {
    address.set(run.0);
    bytes.set(run.1);
}

impl Out<u8> {
    /// Stores text with its NUL into a buffer of `len` bytes, cut where it does not fit.
    ///
    /// # Safety
    /// The caller promised so many bytes.
    pub(crate) unsafe fn set_text(self, text: &str, len: i32) -> Answer {
        self.required()?;
        let Some(room) = usize::try_from(len).ok().and_then(|len| len.checked_sub(1)) else {
            return Err(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE));
        };
        let bytes = &text.as_bytes()[..text.len().min(room)];
        for (index, byte) in bytes.iter().chain(&[0]).enumerate() {
            // SAFETY: text and NUL are at most `len` bytes.
            unsafe { self.set_at(index, *byte) }
        }
        Ok(())
    }
}

/// A pointer to what is read; may be null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Null.
    pub(crate) fn none() -> In<T> {
        In(std::ptr::null())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value.
    pub(crate) fn get(self) -> Result<T, Refusal> {
        // SAFETY: the first element is there (module text).
        unsafe { self.get_at(0) }
    }

    /// Element `index`; null is refused.
    ///
    /// # Safety
    /// The caller promised an array with at least this element, or null.
    pub(crate) unsafe fn get_at(self, index: usize) -> Result<T, Refusal> {
        if self.0.is_null() {
            return Err(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE));
        }
        // SAFETY: the element is there, as our caller knows.
        let place = unsafe { self.0.add(index) };
        // SAFETY: as above. The types read are numbers, arrays and structures of them: every bit pattern is a value.
        Ok(unsafe { place.read_unaligned() })
    }

    /// `count` elements; null only for none.
    ///
    /// # Safety
    /// The caller promised so many, or null.
    pub(crate) unsafe fn list(self, count: usize) -> Result<Vec<T>, Refusal> {
        // SAFETY: as our caller knows.
        (0..count).map(|index| unsafe { self.get_at(index) }).collect()
    }
}

/// A pointer to what is read, and then replaced by a result; may be null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct InOut<T>(*mut T);

impl<T: Copy> InOut<T> {
    /// What is there before.
    pub(crate) fn input(self) -> In<T> {
        In(self.0.cast_const())
    }

    /// Where the result goes.
    pub(crate) fn output(self) -> Out<T> {
        Out(self.0)
    }
}

/// A pointer to text that ends in NUL; may be null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text; null and other than UTF-8 are refused with `INVALID_VALUE`.
    pub(crate) fn get(&self) -> Result<&str, Refusal> {
        if self.0.is_null() {
            return Err(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE));
        }
        // SAFETY: not null; the caller promised text that ends in NUL (module text). It outlives the call, and `self`
        // does not.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Refusal(CUresult::CUDA_ERROR_INVALID_VALUE))
    }
}

/// Memory of the caller: a pointer and the size that goes with it. Null is refused unless the size is 0.
///
/// # Safety
/// The caller promised so many bytes for `'a`: until the call returns; for asynchronous copies until they are done, of which
/// nothing remains here. An address that turns out to be the GPU's is only looked up.
pub(crate) unsafe fn range<'a>(address: impl Into<u64>, bytes: usize) -> Result<HostRange<'a>, Refusal> {
    let address = address.into();
    if address == 0 && bytes != 0 {
        return Err(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE));
    }
    // SAFETY: as our caller knows.
    Ok(unsafe { HostRange::new(address as usize, bytes) })
}

/// A pointer argument that the API types as `void *` but that leads to a `T`.
///
/// # Safety
/// The caller promised a `T` there, or null.
pub(crate) unsafe fn out_at<T>(address: HostAddr) -> Out<T> {
    Out(std::ptr::with_exposed_provenance_mut(address.0 as usize))
}

/// As [`out_at`], to be read.
///
/// # Safety
/// As for [`out_at`].
pub(crate) unsafe fn in_at<T>(address: HostAddr) -> In<T> {
    In(std::ptr::with_exposed_provenance(address.0 as usize))
}

/// Conversions between the core's values and the interface's; neither side's types are ours.
pub(crate) trait Encode<T> {
    fn encode(self) -> T;
}

macro_rules! same {
    ($($kind:ty),*) => {$(
        impl Encode<$kind> for $kind {
            fn encode(self) -> $kind {
                self
            }
        }
    )*};
}

same!(u8, i32, u32, u64, usize, f32, HostAddr);

macro_rules! with {
    ($($from:ty => $to:ty: $value:ident, $result:expr;)*) => {$(
        impl Encode<$to> for $from {
            fn encode(self) -> $to {
                let $value = self;
                $result
            }
        }
    )*};
}

// The host is a 64-bit machine: `usize` holds every size.
with! {
    u64 => usize: value, value as usize;
    bool => i32: value, i32::from(value);
    DevAddr => u64: value, value.0;
    cuda_core::Device => i32: value, value.0;
    cuda_core::Physical => u64: value, value.0;
    u64 => HostAddr: value, HostAddr(value);
    [u8; 16] => cuda_abi::CUuuid: bytes, cuda_abi::CUuuid { bytes };
    [u8; 64] => cuda_abi::CUlaunchAttributeValue: bytes, cuda_abi::CUlaunchAttributeValue {
        words: std::array::from_fn(|word| u64::from_ne_bytes(bytes.as_chunks().0[word])),
    };
    cuda_abi::CUlaunchAttributeValue => [u8; 64]: value,
        std::array::from_fn(|at| value.words[at / 8].to_ne_bytes()[at % 8]);
    u32 => cuda_abi::CUfunc_cache: value, cuda_abi::CUfunc_cache(value);
    u32 => cuda_abi::CUsharedconfig: value, cuda_abi::CUsharedconfig(value);
    u32 => cuda_abi::CUmoduleLoadingMode: value, cuda_abi::CUmoduleLoadingMode(value);
    u32 => cuda_abi::CUfunctionLoadingState: value, cuda_abi::CUfunctionLoadingState(value);
    u32 => cuda_abi::CUstreamCaptureStatus: value, cuda_abi::CUstreamCaptureStatus(value);
    u32 => cuda_abi::CUgraphNodeType: value, cuda_abi::CUgraphNodeType(value);
    u32 => cuda_abi::CUstreamCaptureMode: value, cuda_abi::CUstreamCaptureMode(value);
}

/// A handle of the interface as the core's.
pub(crate) trait Core {
    type Core;
    fn core(self) -> Self::Core;
}

macro_rules! handles {
    ($($abi:ident <=> $core:ident),* $(,)?) => {$(
        impl Core for cuda_abi::$abi {
            type Core = cuda_core::$core;
            fn core(self) -> cuda_core::$core {
                cuda_core::$core(self.0)
            }
        }

        impl Encode<cuda_abi::$abi> for cuda_core::$core {
            fn encode(self) -> cuda_abi::$abi {
                cuda_abi::$abi(self.0)
            }
        }
    )*};
}

handles! {
    CUcontext <=> Context,
    CUstream <=> Stream,
    CUevent <=> Event,
    CUmodule <=> Module,
    CUfunction <=> Function,
    CUlibrary <=> Library,
    CUkernel <=> Kernel,
    CUmemoryPool <=> MemPool,
    CUlinkState <=> Link,
    CUgraph <=> Graph,
    CUgraphNode <=> GraphNode,
    CUgraphExec <=> GraphExec,
    CUuserObject <=> UserObject,
    CUarray <=> Array,
    CUmipmappedArray <=> MipmappedArray,
    CUtexref <=> TexRef,
    CUsurfref <=> SurfRef,
    CUgreenCtx <=> GreenContext,
    CUdevResourceDesc <=> ResourceDesc,
}

macro_rules! plain_out {
    ($($kind:ident),*) => {$(
        impl Encode<cuda_abi::$kind> for cuda_abi::$kind {
            fn encode(self) -> cuda_abi::$kind {
                self
            }
        }
    )*};
}

plain_out!(
    CUdriverProcAddressQueryResult,
    CUexecAffinityParam,
    CUdevprop,
    CUmemAllocationProp,
    CUmemAccess_flags,
    CUmemLocation,
    CUlaunchAttributeValue,
    CU_DEV_SM_RESOURCE_GROUP_PARAMS,
    CUgraphEdgeData,
    CUgraphExecUpdateResult,
    CUgraphExecUpdateResultInfo,
    CUDA_GRAPH_INSTANTIATE_PARAMS,
    CUuuid
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_refused_or_ignored() {
        let null: Out<u32> = Out(std::ptr::null_mut());
        assert!(null.required().is_err());
        null.set(5u32);
        assert!(In::<u32>(std::ptr::null()).get().is_err());
        assert!(Text(std::ptr::null()).get().is_err());
        // SAFETY: of null, nothing is made.
        assert!(unsafe { range(0u64, 1) }.is_err());
        // SAFETY: no bytes are valid anywhere.
        assert!(unsafe { range(0u64, 0) }.is_ok());
    }

    #[test]
    fn text_is_cut_to_its_buffer() {
        let mut buffer = [7u8; 8];
        let out = Out(buffer.as_mut_ptr());
        // SAFETY: half of the buffer.
        unsafe { out.set_text("sundial", 4) }.unwrap();
        assert_eq!(&buffer, b"sun\0\x07\x07\x07\x07");
        for len in [0, -1] {
            // SAFETY: nothing is written.
            assert!(unsafe { out.set_text("x", len) }.is_err());
        }
    }

    #[test]
    fn arrays_need_no_alignment() {
        let bytes = [0u8, 1, 0, 0, 0, 2, 0, 0, 0];
        // SAFETY: there are eight bytes.
        let list = unsafe { In(bytes[1..].as_ptr().cast::<u32>()).list(2) }.unwrap();
        assert_eq!(list, [1, 2]);
    }
}
