//! What C passes, as types whose use is safe.
//!
//! A value of [`In`] or [`Out`] exists only because a C program called a function of the interface, and with that promised what
//! the interface says of the argument: null, or valid for as many elements as the function's other arguments say, until the call
//! returns. Alignment is not asked of it.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_UNKNOWN, NVML_SUCCESS, nvmlReturn_t,
};

/// What the body of a function returns; results go through its arguments.
pub(crate) type Answer<T = ()> = Result<T, nvmlReturn_t>;

/// Runs a function: a panic is an error of ours, and ends here.
pub(crate) fn answer(body: impl FnOnce() -> Answer) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => NVML_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => NVML_ERROR_UNKNOWN,
    }
}

/// Makes functions with the vendor's names from their parameters and what answers them.
macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) = $body:ident;)*) => {
        /// Names of the functions here.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The functions, as C calls them.
        pub mod calls {
            use super::*;

            $(
                #[doc = concat!("`", stringify!($name), "`")]
                #[unsafe(no_mangle)]
                pub extern "C" fn $name($($argument: $kind),*) -> $crate::abi::nvmlReturn_t {
                    $crate::edge::answer(|| super::$body($($argument),*))
                }
            )*
        }
    };
}
pub(crate) use exports;

/// A pointer to where results go; may be null.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    /// A place for a result of a function that is called with it.
    pub fn to(place: &mut T) -> Out<T> {
        Out(place)
    }

    /// Places for results of a function that is told how many there are.
    pub fn to_all(places: &mut [T]) -> Out<T> {
        Out(places.as_mut_ptr())
    }

    /// Null.
    #[must_use]
    pub fn none() -> Out<T> {
        Out(std::ptr::null_mut())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    fn place(self) -> Answer<*mut T> {
        if self.0.is_null() { Err(NVML_ERROR_INVALID_ARGUMENT) } else { Ok(self.0) }
    }

    /// Stores a result.
    pub(crate) fn set(self, value: T) -> Answer {
        let place = self.place()?;
        // SAFETY: the first element is there (module text).
        unsafe { place.write_unaligned(value) };
        Ok(())
    }

    /// What is there before.
    pub(crate) fn get(self) -> Answer<T> {
        let place = self.place()?;
        // SAFETY: the first element is there (module text), and of C's making: any bits are a value of these types.
        Ok(unsafe { place.read_unaligned() })
    }

    /// Stores results one after the other.
    ///
    /// # Safety
    /// There is room for so many: the function's other arguments say so.
    pub(crate) unsafe fn set_all(self, values: &[T]) -> Answer {
        let place = self.place()?;
        for (index, value) in values.iter().enumerate() {
            // SAFETY: the caller's precondition.
            let place = unsafe { place.add(index) };
            // SAFETY: the caller's precondition.
            unsafe { place.write_unaligned(*value) };
        }
        Ok(())
    }

    /// The place of an element.
    ///
    /// # Safety
    /// It is there: the function's other arguments say so.
    pub(crate) unsafe fn at(self, index: usize) -> Answer<Out<T>> {
        let place = self.place()?;
        // SAFETY: the caller's precondition.
        Ok(Out(unsafe { place.add(index) }))
    }

    /// The same place, for something of another type, no larger than what is there.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl Out<c_char> {
    /// Stores a text with its zero in a buffer of so many bytes.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` without a buffer, `INSUFFICIENT_SIZE` if it does not fit.
    pub(crate) fn set_text(self, length: u32, text: &str) -> Answer {
        if self.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let bytes: Vec<c_char> = text.bytes().chain([0]).map(u8::cast_signed).collect();
        if bytes.len() > length as usize {
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        // SAFETY: the caller has said how many bytes there are, and these are no more.
        unsafe { self.set_all(&bytes) }
    }
}

/// A pointer to what is read; may be null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// What a function that is called with it reads.
    #[must_use]
    pub fn of(value: &T) -> In<T> {
        In(value)
    }

    /// Null.
    #[must_use]
    pub fn none() -> In<T> {
        In(std::ptr::null())
    }

    pub(crate) fn get(self) -> Answer<T> {
        Out(self.0.cast_mut()).get()
    }
}

impl In<c_char> {
    /// A text that a function is called with.
    #[must_use]
    pub fn text(text: &CStr) -> In<c_char> {
        In(text.as_ptr())
    }

    /// The text before its zero.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if there is none, or it is not UTF-8.
    pub(crate) fn get_text(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: texts end with a zero (module text).
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)
    }
}

/// `nvmlDevice_t`: which GPU. Nothing is behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Device(*const c_void);

/// Handles look like addresses to those who print them, and are none of anything.
const FIRST: usize = 0x5d1a_1000;

impl Device {
    /// The handle of a GPU.
    #[must_use]
    pub fn number(index: usize) -> Device {
        Device(std::ptr::without_provenance(FIRST + index * 16))
    }

    /// No handle.
    #[must_use]
    pub fn none() -> Device {
        Device(std::ptr::null())
    }

    /// Which GPU, if it is a handle.
    pub(crate) fn index(self) -> Option<usize> {
        let at = self.0.addr().checked_sub(FIRST)?;
        at.is_multiple_of(16).then_some(at / 16)
    }
}

/// Bytes of a text with zeros behind it, cut to what there is room for.
pub(crate) fn padded<const N: usize>(text: &str) -> [c_char; N] {
    let mut all = [0; N];
    for (place, byte) in all.iter_mut().take(N - 1).zip(text.bytes()) {
        *place = byte.cast_signed();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_end_here() {
        assert_eq!(answer(|| panic!("as a test")), NVML_ERROR_UNKNOWN);
        assert_eq!(answer(|| Ok(())), NVML_SUCCESS);
    }

    #[test]
    fn texts_fit_or_are_refused() {
        let mut buffer = [c_char::from_ne_bytes([b'x']); 4];
        let out = Out::to_all(&mut buffer);
        assert_eq!(out.set_text(4, "abc"), Ok(()));
        assert_eq!(out.set_text(3, "abc"), Err(NVML_ERROR_INSUFFICIENT_SIZE));
        assert_eq!(Out::none().set_text(4, "abc"), Err(NVML_ERROR_INVALID_ARGUMENT));
        assert_eq!(buffer.map(c_char::cast_unsigned), *b"abc\0");
        assert_eq!(padded::<3>("abc").map(c_char::cast_unsigned), *b"ab\0");
    }

    #[test]
    fn handles_are_numbers() {
        assert_eq!(Device::number(3).index(), Some(3));
        for wrong in [Device::none(), Device(std::ptr::without_provenance(FIRST + 1)), Device(std::ptr::dangling())] {
            assert_eq!(wrong.index(), None);
        }
    }
}
