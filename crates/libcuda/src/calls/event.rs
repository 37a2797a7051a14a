//! Glue of events.

use cuda_abi::{CUevent, CUstream};
use cuda_core::Driver;

use crate::decode::{Core, Out};
use crate::entry::Answer;

pub(crate) fn event_create(driver: &Driver, event: Out<CUevent>, flags: u32) -> Answer {
    event.required()?;
    event.set(driver.event_create(flags)?);
    Ok(())
}

pub(crate) fn event_destroy(driver: &Driver, event: CUevent) -> Answer {
    Ok(driver.event_destroy(event.core())?)
}

pub(crate) fn event_record(driver: &Driver, event: CUevent, stream: CUstream) -> Answer {
    Ok(driver.event_record(event.core(), stream.core())?)
}

pub(crate) fn event_record_with_flags(driver: &Driver, event: CUevent, stream: CUstream, flags: u32) -> Answer {
    Ok(driver.event_record_with_flags(event.core(), stream.core(), flags)?)
}

pub(crate) fn event_query(driver: &Driver, event: CUevent) -> Answer {
    Ok(driver.event_query(event.core())?)
}

pub(crate) fn event_synchronize(driver: &Driver, event: CUevent) -> Answer {
    Ok(driver.event_synchronize(event.core())?)
}

pub(crate) fn event_elapsed_time(driver: &Driver, milliseconds: Out<f32>, start: CUevent, end: CUevent) -> Answer {
    milliseconds.required()?;
    milliseconds.set(driver.event_elapsed_time(start.core(), end.core())?);
    Ok(())
}
