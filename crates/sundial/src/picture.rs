//! What all pictures of benchmarks share.

use std::error::Error;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;

/// A part of a picture.
pub(crate) type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What comes of drawing on one.
pub(crate) type Drawn = Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>>;

/// The library's errors, which do not outlive what they borrow, as ours.
pub(crate) fn explain(error: impl Error) -> anyhow::Error {
    anyhow!("{error}")
}

/// Each of these once, in the order in which they came first.
pub(crate) fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}
