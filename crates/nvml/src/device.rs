//! GPUs: which there are, what they are, and what is left of them.

use std::ffi::c_char;

use gpu::Properties;

use crate::abi::{
    ARCHITECTURES, NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED, nvmlFieldValue_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlPciInfoExt_v1_t,
    nvmlUUID_v1_t, nvmlUtilization_t, version,
};
use crate::edge::{Answer, Device, In, Out, exports, padded};
use crate::library::{library, on};

exports! {
    fn nvmlDeviceGetCount(count: Out<u32>) = count;
    fn nvmlDeviceGetCount_v2(count: Out<u32>) = count;
    fn nvmlDeviceGetHandleByIndex(index: u32, device: Out<Device>) = by_index;
    fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<Device>) = by_index;
    fn nvmlDeviceGetHandleByUUID(uuid: In<c_char>, device: Out<Device>) = by_uuid;
    fn nvmlDeviceGetHandleByUUIDV(uuid: In<nvmlUUID_v1_t>, device: Out<Device>) = by_uuid_either_way;
    fn nvmlDeviceGetHandleByPciBusId(bus_id: In<c_char>, device: Out<Device>) = by_bus_id;
    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: In<c_char>, device: Out<Device>) = by_bus_id;
    fn nvmlDeviceGetIndex(device: Device, index: Out<u32>) = index;
    fn nvmlDeviceGetName(device: Device, name: Out<c_char>, length: u32) = name;
    fn nvmlDeviceGetUUID(device: Device, uuid: Out<c_char>, length: u32) = uuid;
    fn nvmlDeviceGetPciInfo(device: Device, info: Out<nvmlPciInfo_t>) = pci_info_first;
    fn nvmlDeviceGetPciInfo_v2(device: Device, info: Out<nvmlPciInfo_t>) = pci_info_second;
    fn nvmlDeviceGetPciInfo_v3(device: Device, info: Out<nvmlPciInfo_t>) = pci_info;
    fn nvmlDeviceGetPciInfoExt(device: Device, info: Out<nvmlPciInfoExt_v1_t>) = pci_info_ext;
    fn nvmlDeviceGetCudaComputeCapability(device: Device, major: Out<i32>, minor: Out<i32>) = compute_capability;
    fn nvmlDeviceGetArchitecture(device: Device, architecture: Out<u32>) = architecture;
    fn nvmlDeviceGetBrand(device: Device, brand: Out<u32>) = zero;
    fn nvmlDeviceGetMemoryInfo(device: Device, memory: Out<nvmlMemory_t>) = memory_info;
    fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: Out<nvmlMemory_v2_t>) = memory_info_second;
    fn nvmlDeviceGetUtilizationRates(device: Device, utilization: Out<nvmlUtilization_t>) = utilization;
    fn nvmlDeviceGetComputeMode(device: Device, mode: Out<u32>) = zero;
    fn nvmlDeviceGetPersistenceMode(device: Device, mode: Out<u32>) = zero;
    fn nvmlDeviceGetDisplayMode(device: Device, display: Out<u32>) = zero;
    fn nvmlDeviceGetDisplayActive(device: Device, active: Out<u32>) = zero;
    fn nvmlDeviceGetMultiGpuBoard(device: Device, several: Out<u32>) = zero;
    fn nvmlDeviceIsMigDeviceHandle(device: Device, is_mig: Out<u32>) = zero;
    fn nvmlDeviceGetMaxMigDeviceCount(device: Device, count: Out<u32>) = zero;
    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Device, index: u32, mig: Out<Device>) = mig_device;
    fn nvmlDeviceGetFieldValues(device: Device, count: i32, values: Out<nvmlFieldValue_t>) = field_values;
    fn nvmlDeviceOnSameBoard(one: Device, other: Device, same: Out<i32>) = on_same_board;
}

fn count(count: Out<u32>) -> Answer {
    count.set(library()?.facts().len() as u32)
}

/// The first GPU of which something is so.
fn find(device: Out<Device>, is: impl Fn(&Properties) -> bool) -> Answer {
    if device.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    let found = library()?.facts().iter().position(is).ok_or(NVML_ERROR_NOT_FOUND)?;
    device.set(Device::number(found))
}

fn by_index(index: u32, device: Out<Device>) -> Answer {
    if index as usize >= library()?.facts().len() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    device.set(Device::number(index as usize))
}

fn by_uuid(uuid: In<c_char>, device: Out<Device>) -> Answer {
    library()?;
    let uuid = uuid.get_text()?;
    find(device, |gpu| uuid_text(&gpu.uuid).eq_ignore_ascii_case(&uuid))
}

fn by_uuid_either_way(uuid: In<nvmlUUID_v1_t>, device: Out<Device>) -> Answer {
    const ASCII: u32 = 1;
    const BINARY: u32 = 2;
    library()?;
    let nvmlUUID_v1_t { version: number, kind, value } = uuid.get()?;
    if number != version::<nvmlUUID_v1_t>(1) {
        return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    match kind {
        ASCII => find(device, |gpu| {
            let text = uuid_text(&gpu.uuid);
            value.starts_with(text.as_bytes()) && value[text.len()] == 0
        }),
        BINARY => find(device, |gpu| value.starts_with(&gpu.uuid)),
        _ => Err(NVML_ERROR_INVALID_ARGUMENT),
    }
}

fn by_bus_id(bus_id: In<c_char>, device: Out<Device>) -> Answer {
    library()?;
    let wanted = parse_bus_id(&bus_id.get_text()?).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    find(device, |gpu| gpu.pci == wanted)
}

/// `domain:bus:device.function`, `domain:bus:device` or `bus:device.function`, in hexadecimal; the only function is 0.
fn parse_bus_id(text: &str) -> Option<[u32; 3]> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'));
    let (address, function) = match text.split_once('.') {
        Some((address, function)) => (address, Some(hex(function)?)),
        None => (text, None),
    };
    let numbers: Vec<u32> = address.split(':').map(hex).collect::<Option<_>>()?;
    match (numbers[..].try_into(), &numbers[..], function) {
        (Ok(all), _, None | Some(0)) => Some(all),
        (_, [bus, device], Some(0)) => Some([0, *bus, *device]),
        _ => None,
    }
}

fn index(device: Device, index: Out<u32>) -> Answer {
    let (_, at) = on(device)?;
    index.set(at as u32)
}

fn name(device: Device, name: Out<c_char>, length: u32) -> Answer {
    let (library, at) = on(device)?;
    name.set_text(length, &library.facts()[at].name)
}

fn uuid(device: Device, uuid: Out<c_char>, length: u32) -> Answer {
    let (library, at) = on(device)?;
    uuid.set_text(length, &uuid_text(&library.facts()[at].uuid))
}

/// A UUID as it is shown.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex =
        |range: std::ops::Range<usize>| -> String { uuid[range].iter().map(|byte| format!("{byte:02x}")).collect() };
    format!("GPU-{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
}

/// Where a GPU is. Identifiers of vendor and device are 0: they are another's to give.
fn place(device: Device) -> Answer<nvmlPciInfo_t> {
    let (library, at) = on(device)?;
    let [domain, bus, device] = library.facts()[at].pci;
    Ok(nvmlPciInfo_t {
        bus_id_legacy: padded(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        pci_device_id: 0,
        pci_subsystem_id: 0,
        bus_id: padded(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    })
}

fn pci_info(device: Device, info: Out<nvmlPciInfo_t>) -> Answer {
    info.set(place(device)?)
}

/// The beginning of the structure, as it was at first: up to the device's identifier.
fn pci_info_first(device: Device, info: Out<nvmlPciInfo_t>) -> Answer {
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct First([c_char; 16], [u32; 4]);
    let nvmlPciInfo_t { bus_id_legacy, domain, bus, device, pci_device_id, .. } = place(device)?;
    info.cast().set(First(bus_id_legacy, [domain, bus, device, pci_device_id]))
}

/// The beginning of the structure, as it was before it had longer names: with four words of nothing behind it.
fn pci_info_second(device: Device, info: Out<nvmlPciInfo_t>) -> Answer {
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Second([c_char; 16], [u32; 5], [u32; 4]);
    let nvmlPciInfo_t { bus_id_legacy, domain, bus, device, pci_device_id, pci_subsystem_id, .. } = place(device)?;
    info.cast().set(Second(bus_id_legacy, [domain, bus, device, pci_device_id, pci_subsystem_id], [0; 4]))
}

fn pci_info_ext(device: Device, info: Out<nvmlPciInfoExt_v1_t>) -> Answer {
    let place = place(device)?;
    if info.cast::<u32>().get()? != version::<nvmlPciInfoExt_v1_t>(1) {
        return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    info.set(nvmlPciInfoExt_v1_t {
        version: version::<nvmlPciInfoExt_v1_t>(1),
        domain: place.domain,
        bus: place.bus,
        device: place.device,
        pci_device_id: 0,
        pci_subsystem_id: 0,
        // A display controller that is none of the known kinds: a 3D controller.
        base_class: 3,
        sub_class: 2,
        bus_id: place.bus_id,
    })
}

fn compute_capability(device: Device, major: Out<i32>, minor: Out<i32>) -> Answer {
    let (library, at) = on(device)?;
    if major.is_null() || minor.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    let [first, second] = library.facts()[at].compute_capability;
    major.set(first.cast_signed())?;
    minor.set(second.cast_signed())
}

fn architecture(device: Device, architecture: Out<u32>) -> Answer {
    let (library, at) = on(device)?;
    let name = match library.facts()[at].compute_capability {
        [5, _] => "MAXWELL",
        [6, _] => "PASCAL",
        [7, 5] => "TURING",
        [7, _] => "VOLTA",
        [8, 9] => "ADA",
        [8, _] => "AMPERE",
        [9, _] => "HOPPER",
        [10..=12, _] => "BLACKWELL",
        _ => "UNKNOWN",
    };
    let number = ARCHITECTURES.iter().find(|known| known.0 == name).map_or(u32::MAX, |known| known.1);
    architecture.set(number)
}

/// Nothing of that, off, the default, unknown: all that is 0.
fn zero(device: Device, value: Out<u32>) -> Answer {
    on(device)?;
    value.set(0)
}

/// Total, free and used memory, bytes.
fn memory(device: Device) -> Answer<[u64; 3]> {
    let (library, at) = on(device)?;
    let now = library.now()?;
    let gpu = now.gpu(at)?;
    let total = gpu.properties.memory_bytes;
    Ok([total, total.saturating_sub(gpu.memory_used), gpu.memory_used])
}

fn memory_info(device: Device, out: Out<nvmlMemory_t>) -> Answer {
    let [total, free, used] = memory(device)?;
    out.set(nvmlMemory_t { total, free, used })
}

fn memory_info_second(device: Device, out: Out<nvmlMemory_v2_t>) -> Answer {
    on(device)?;
    let version = version::<nvmlMemory_v2_t>(2);
    if out.cast::<u32>().get()? != version {
        return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    let [total, free, used] = memory(device)?;
    out.set(nvmlMemory_v2_t { version, total, reserved: 0, free, used })
}

fn utilization(device: Device, out: Out<nvmlUtilization_t>) -> Answer {
    let (library, at) = on(device)?;
    let now = library.now()?;
    // Nobody measures how often memory is used.
    out.set(nvmlUtilization_t { gpu: (now.gpu(at)?.received + 50) / 100, memory: 0 })
}

fn mig_device(device: Device, _index: u32, _mig: Out<Device>) -> Answer {
    on(device)?;
    Err(NVML_ERROR_NOT_FOUND)
}

/// Each value is refused by itself.
fn field_values(device: Device, count: i32, values: Out<nvmlFieldValue_t>) -> Answer {
    on(device)?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    for index in 0..count {
        // SAFETY: the caller has said how many there are.
        let value = unsafe { values.at(index) }?;
        value.set(nvmlFieldValue_t { nvml_return: NVML_ERROR_NOT_SUPPORTED, ..value.get()? })?;
    }
    Ok(())
}

fn on_same_board(one: Device, other: Device, same: Out<i32>) -> Answer {
    let ((_, one), (_, other)) = (on(one)?, on(other)?);
    same.set((one == other).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_addresses_are_read_in_each_form() {
        assert_eq!(parse_bus_id("00000000:01:00.0"), Some([0, 1, 0]));
        assert_eq!(parse_bus_id("1:0A:1f"), Some([1, 10, 31]));
        assert_eq!(parse_bus_id("0a:1.0"), Some([0, 10, 1]));
        for wrong in ["", "01", "0a:1", "0:1:2.1", "0:1:2:3.0", "x:1:2", "+1:2:3", "0:1:2.", "0::2.0"] {
            assert_eq!(parse_bus_id(wrong), None, "{wrong}");
        }
        assert_eq!(uuid_text(b"sundial-soft-gpu"), "GPU-73756e64-6961-6c2d-736f-66742d677075");
    }
}
