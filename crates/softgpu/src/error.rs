//! What can go wrong in a channel, and how it is told: fault packet, notifier.

use gmmu::{AccessKind, PhysMem};
use gpu_spec::fault::{AccessType, EngineId, Fault, FaultType};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::notifier::{Code, LOG_BYTES, LOG_OFFSET, Reason, Record, STATUS_ERROR};
use ptx::launch::{Access, AccessError, Exception};
use zerocopy::IntoBytes;

use crate::memory::Memory;
use crate::space::Refused;

/// Which unit of the device made an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    Host,
    Copy,
    Compute,
}

impl Unit {
    fn engine(self) -> EngineId {
        match self {
            Unit::Host => EngineId::HOST,
            Unit::Copy => EngineId::COPY,
            Unit::Compute => EngineId::GRAPHICS,
        }
    }
}

/// An error that stops a channel and its TSG.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ChannelError {
    code: Code,
    reason: Reason,
    address: u64,
    access: AccessKind,
    method: u32,
    data: u32,
    log: String,
    /// For errors that are MMU faults: what the packet says.
    fault: Option<(FaultType, Unit)>,
}

impl ChannelError {
    /// An error with a text, no MMU fault.
    pub(crate) fn new(code: Code, reason: Reason, log: String) -> ChannelError {
        ChannelError { code, reason, address: 0, access: AccessKind::Read, method: 0, data: 0, log, fault: None }
    }

    /// Something malformed that the host engine met.
    pub(crate) fn pushbuffer(what: impl Into<String>) -> ChannelError {
        ChannelError::new(Code::PBDMA_ERROR, Reason::ILLEGAL_COMMAND, what.into())
    }

    /// A method that the class does not have, or data it does not take.
    pub(crate) fn method(code: Code, subchannel: u32, method: u32, data: u32, what: &str) -> ChannelError {
        let log = format!("subchannel {subchannel}, method {method:#x}, data {data:#x}: {what}");
        ChannelError {
            method: subchannel << 16 | method,
            data,
            ..ChannelError::new(code, Reason::ILLEGAL_COMMAND, log)
        }
    }

    /// An access that the MMU refused.
    pub(crate) fn refused(refused: Refused, unit: Unit) -> ChannelError {
        ChannelError {
            address: refused.address,
            access: refused.access,
            fault: Some((refused.kind, unit)),
            ..ChannelError::new(Code::MMU_FAULT, Reason::ILLEGAL_ADDRESS, String::new())
        }
    }

    /// How a kernel ended, and where in it. `refused` tells why the MMU refuses an access.
    pub(crate) fn exception(
        exception: Exception,
        site: String,
        refused: impl FnOnce(u64, gmmu::Access) -> Refused,
    ) -> ChannelError {
        let plain = |reason| ChannelError::new(Code::GR_EXCEPTION, reason, String::new());
        let error = match exception {
            Exception::Trap => plain(Reason::TRAP),
            Exception::Assert => plain(Reason::ASSERT),
            Exception::Illegal => plain(Reason::ILLEGAL_INSTRUCTION),
            Exception::Access { address, access, error } => {
                let wanted = match access {
                    Access::Read => gmmu::Access::READ,
                    Access::Write => gmmu::Access::WRITE,
                    Access::Atomic => gmmu::Access::ATOMIC,
                };
                let error = match error {
                    AccessError::Unmapped | AccessError::OutOfWindow | AccessError::ReadOnly => {
                        ChannelError::refused(refused(address, wanted), Unit::Compute)
                    }
                    AccessError::Misaligned => plain(Reason::MISALIGNED),
                    AccessError::Image | AccessError::NotAllocated => plain(Reason::ILLEGAL_ADDRESS),
                    AccessError::Shared | AccessError::Local | AccessError::Param => plain(Reason::OUT_OF_BOUNDS),
                };
                ChannelError { address, access: wanted.kind, ..error }
            }
        };
        ChannelError { log: site, ..error }
    }

    /// True if the host engine (PBDMA), rather than another engine, is at fault.
    pub(crate) fn is_host(&self) -> bool {
        self.code == Code::PBDMA_ERROR || matches!(self.fault, Some((_, Unit::Host)))
    }

    /// The fault for the fault buffer, if it is one.
    pub(crate) fn fault(&self, instance: PhysAddr, timestamp: u64) -> Option<Fault> {
        let (fault, unit) = self.fault?;
        let access = match self.access {
            AccessKind::Read => AccessType::VIRT_READ,
            AccessKind::Write => AccessType::VIRT_WRITE,
            AccessKind::Atomic => AccessType::VIRT_ATOMIC,
        };
        let gpc = unit == Unit::Compute;
        Some(Fault { instance, address: self.address, timestamp, engine: unit.engine(), fault, access, gpc })
    }

    /// Writes a notifier, the status last; memory that is not there stays silent. One that is written already keeps what
    /// it says: the first error is the cause.
    pub(crate) fn notify(&self, memory: &Memory, at: PhysAddr, channel: u32, timestamp: u64) {
        let status = at.offset(12);
        if memory.read_word(status).is_none_or(|word| word >> 16 != 0) {
            return;
        }
        let mut end = self.log.len().min(LOG_BYTES as usize);
        while !self.log.is_char_boundary(end) {
            end -= 1;
        }
        let record = Record {
            timestamp,
            code: self.code,
            reason: self.reason,
            log_bytes: end as u32,
            address: self.address,
            access: match self.access {
                AccessKind::Read => 0,
                AccessKind::Write => 1,
                AccessKind::Atomic => 2,
            },
            channel,
            method: self.method,
            data: self.data,
            ..Record::default()
        };
        let log = memory.write(at.offset(LOG_OFFSET), &self.log.as_bytes()[..end]);
        if log.and_then(|()| memory.write(at, record.as_bytes())).is_ok() {
            memory.write_word(status, u32::from(STATUS_ERROR) << 16);
        }
    }
}
