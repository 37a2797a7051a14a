//! Commands of a guest, checked on a private copy before the device sees them.
//!
//! What is refused: classes that the device's engines do not have here, copies by physical address, methods of the host engine
//! that are the privileged software's, translations of foreign page directories. Invalidates of the guest's own page directory are
//! allowed, and name the shadow's afterwards. Everything else is checked by the engines, against the shadow tables.
//!
//! Pure: words in, words out. The state of a channel goes on from segment to segment, as the device's own does.

use gpu_spec::compute::TURING_COMPUTE_A;
use gpu_spec::copy::{LAUNCH_DMA, TURING_DMA_COPY_A, launch_dma};
use gpu_spec::host::{self, Header, SUBCHANNELS, mem_op};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::ramfc::{place, target};

/// A command that no guest may give.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("method {method:#x} of subchannel {subchannel} with {data:#x}: {why}")]
pub struct Refused {
    /// Subchannel.
    pub subchannel: u32,
    /// Byte address.
    pub method: u32,
    /// Its data.
    pub data: u32,
    /// For the log: what the audit refuses, and the rule.
    pub why: &'static str,
}

/// How a segment of a guest's pushbuffer is to be read, and what has been said before.
#[derive(Clone, Debug)]
pub struct Audit {
    /// The guest's page directory, and the shadow that stands for it.
    guest_root: PhysAddr,
    shadow_root: PhysAddr,
    classes: [u32; SUBCHANNELS as usize],
    run: Option<Run>,
    /// Data of `MEM_OP_C` as the guest gave it.
    mem_op_c: u32,
    /// The guest's page directory was invalidated since somebody looked.
    pub invalidated: bool,
}

/// Words that follow a header.
#[derive(Clone, Copy, Debug)]
struct Run {
    subchannel: u32,
    method: u32,
    left: u32,
    op: u32,
}

impl Audit {
    /// Nothing has been said yet.
    #[must_use]
    pub fn new(guest_root: PhysAddr, shadow_root: PhysAddr) -> Audit {
        Audit {
            guest_root,
            shadow_root,
            classes: [0; SUBCHANNELS as usize],
            run: None,
            mem_op_c: 0,
            invalidated: false,
        }
    }

    /// Checks a segment, or a part of one, and replaces what names the guest's own page directory. True if the segment ends
    /// here, whatever follows: the header that says so, and the words behind it, are gone.
    ///
    /// # Errors
    /// The first command that may not be. Nothing of `words` may be run.
    pub fn check(&mut self, words: &mut Vec<u32>) -> Result<bool, Refused> {
        self.check_behind(words, 0)
    }

    /// As [`Audit::check`], of what stands behind the first `from` words, which have been checked.
    ///
    /// # Errors
    /// The first command that may not be. Nothing behind the first `from` words may be run.
    pub fn check_behind(&mut self, words: &mut Vec<u32>, from: usize) -> Result<bool, Refused> {
        let mut at = from;
        while at < words.len() {
            let Some(run) = &mut self.run else {
                let header = Header(words[at]);
                if header.op() == Header::OP_END_SEGMENT {
                    words.truncate(at);
                    return Ok(true);
                }
                at += 1;
                self.header(header)?;
                continue;
            };
            let Run { subchannel, method, op, .. } = *run;
            run.left -= 1;
            match op {
                Header::OP_INC => run.method += 4,
                Header::OP_ONE_INC => {
                    run.method += 4;
                    run.op = Header::OP_NON_INC;
                }
                _ => {}
            }
            if run.left == 0 {
                self.run = None;
            }
            words[at] = self.method(subchannel, method, words[at])?;
            at += 1;
        }
        Ok(false)
    }

    fn header(&mut self, header: Header) -> Result<(), Refused> {
        let (subchannel, method) = (header.subchannel(), header.method());
        match header.op() {
            Header::OP_INC | Header::OP_NON_INC | Header::OP_ONE_INC => {
                let left = header.count();
                self.run = (left > 0).then_some(Run { subchannel, method, left, op: header.op() });
                Ok(())
            }
            Header::OP_IMMEDIATE => {
                let data = header.count();
                // An immediate cannot name an address: nothing is ever replaced.
                let after = self.method(subchannel, method, data)?;
                if after == data {
                    return Ok(());
                }
                Err(Refused { subchannel, method, data, why: "an immediate names a page directory" })
            }
            // Not subdevice masks, which would have the device pass over what this has seen.
            _ if header == Header::NOP => Ok(()),
            _ => Err(Refused { subchannel, method, data: header.0, why: "no header" }),
        }
    }

    /// The data that the device is given for a method.
    fn method(&mut self, subchannel: u32, method: u32, data: u32) -> Result<u32, Refused> {
        let refuse = |why| Err(Refused { subchannel, method, data, why });
        if method < Header::HOST_METHODS_END {
            return match method {
                host::SET_OBJECT => {
                    let class = host::SET_OBJECT_CLASS.get(data);
                    if ![TURING_COMPUTE_A, TURING_DMA_COPY_A].contains(&class) {
                        return refuse("unknown class");
                    }
                    if let Some(bound) = self.classes.get_mut(subchannel as usize) {
                        *bound = class;
                    }
                    Ok(data)
                }
                host::MEM_OP_C => {
                    self.mem_op_c = data;
                    // Invalidates of all page directories would reach everybody's.
                    Ok(self.with_shadow_lo(data))
                }
                host::MEM_OP_D => self.memory_operation(subchannel, data),
                host::NOP
                | host::SEMAPHORE_A..=host::SEMAPHORE_D
                | host::NON_STALL_INTERRUPT
                | host::MEM_OP_A
                | host::MEM_OP_B
                | host::SET_REFERENCE
                | host::SEM_ADDR_LO
                | host::SEM_ADDR_HI
                | host::SEM_PAYLOAD_LO
                | host::SEM_PAYLOAD_HI
                | host::SEM_EXECUTE
                | host::WFI
                | host::YIELD => Ok(data),
                _ => refuse("not a guest's method of the host engine"),
            };
        }
        match self.classes.get(subchannel as usize) {
            Some(&TURING_DMA_COPY_A) if method == LAUNCH_DMA => {
                if launch_dma::SRC_PHYSICAL.is_set(data) || launch_dma::DST_PHYSICAL.is_set(data) {
                    return refuse("a copy by physical address");
                }
                Ok(data)
            }
            Some(&(TURING_COMPUTE_A | TURING_DMA_COPY_A)) => Ok(data),
            _ => refuse("no class is bound to the subchannel"),
        }
    }

    /// Low bits of the shadow's page directory in place of the guest's.
    fn with_shadow_lo(&self, data: u32) -> u32 {
        let kept = data & !(mem_op::C_PDB_LO.mask() | mem_op::C_APERTURE.mask()) as u32;
        let lo = self.shadow_root.address as u32 & mem_op::C_PDB_LO.mask() as u32;
        kept | lo | mem_op::C_APERTURE.of(target(self.shadow_root.aperture))
    }

    fn memory_operation(&mut self, subchannel: u32, data: u32) -> Result<u32, Refused> {
        let refuse = |why| Err(Refused { subchannel, method: host::MEM_OP_D, data, why });
        match mem_op::D_OPERATION.get(data) {
            mem_op::MMU_TLB_INVALIDATE | mem_op::MMU_TLB_INVALIDATE_TARGETED => {
                let c = self.mem_op_c;
                if mem_op::C_PDB_ALL.is_set(c) {
                    return refuse("an invalidate of all page directories");
                }
                let lo = c & mem_op::C_PDB_LO.mask() as u32;
                if place(mem_op::C_APERTURE.get(c), lo, mem_op::D_PDB_HI.get(data)) != Some(self.guest_root) {
                    return refuse("an invalidate of a foreign page directory");
                }
                self.invalidated = true;
                let hi = (self.shadow_root.address >> 32) as u32;
                Ok(data & !mem_op::D_PDB_HI.mask() as u32 | mem_op::D_PDB_HI.of(hi))
            }
            // What else there is the device knows: barriers and operations on caches reach no further than the channel.
            _ => Ok(data),
        }
    }
}

#[cfg(test)]
mod tests {
    use gpu_spec::host::{SUBCHANNEL_COMPUTE, SUBCHANNEL_COPY};

    use super::*;

    const GUEST: PhysAddr = PhysAddr::vram(0x1_2345_6000);
    const SHADOW: PhysAddr = PhysAddr::vram(0x7_0000_1000);

    fn inc(subchannel: u32, method: u32, data: &[u32]) -> Vec<u32> {
        let mut words = vec![Header::new(Header::OP_INC, subchannel, method, data.len() as u32).0];
        words.extend(data);
        words
    }

    fn bound() -> Audit {
        let mut audit = Audit::new(GUEST, SHADOW);
        audit.check(&mut inc(SUBCHANNEL_COMPUTE, host::SET_OBJECT, &[TURING_COMPUTE_A])).unwrap();
        audit.check(&mut inc(SUBCHANNEL_COPY, host::SET_OBJECT, &[TURING_DMA_COPY_A])).unwrap();
        audit
    }

    #[test]
    fn only_known_classes() {
        let mut audit = Audit::new(GUEST, SHADOW);
        assert_eq!(audit.check(&mut inc(0, host::SET_OBJECT, &[0x902d])).unwrap_err().why, "unknown class");
        assert!(audit.check(&mut inc(3, 0x200, &[1])).is_err(), "nothing is bound");
    }

    #[test]
    fn copies_are_by_virtual_address() {
        let launch = launch_dma::DATA_TRANSFER_TYPE.of(2);
        assert_eq!(bound().check(&mut inc(SUBCHANNEL_COPY, LAUNCH_DMA, &[launch])), Ok(false));
        for physical in [launch_dma::SRC_PHYSICAL, launch_dma::DST_PHYSICAL] {
            let mut words = inc(SUBCHANNEL_COPY, LAUNCH_DMA, &[launch | physical.of(1)]);
            assert_eq!(bound().check(&mut words).unwrap_err().why, "a copy by physical address");
        }
        // The same by a run that only gets there, by an immediate, and over the end of a segment.
        let mut run = inc(SUBCHANNEL_COPY, LAUNCH_DMA - 4, &[0, launch_dma::SRC_PHYSICAL.of(1)]);
        assert!(bound().check(&mut run).is_err());
        let immediate = Header::new(Header::OP_IMMEDIATE, SUBCHANNEL_COPY, LAUNCH_DMA, 1 << 12);
        assert!(bound().check(&mut vec![immediate.0]).is_err());
        let mut audit = bound();
        let [mut first, mut second] = [run[..2].to_vec(), run[2..].to_vec()];
        assert_eq!(audit.check(&mut first), Ok(false));
        assert!(audit.check(&mut second).is_err());
        let one = Header::new(Header::OP_ONE_INC, SUBCHANNEL_COPY, LAUNCH_DMA - 4, 3).0;
        assert!(bound().check(&mut vec![one, 0, 0, launch_dma::DST_PHYSICAL.of(1)]).is_err());
    }

    #[test]
    fn invalidates_name_the_shadow_afterwards() {
        let c = GUEST.address as u32;
        let d = mem_op::D_OPERATION.of(mem_op::MMU_TLB_INVALIDATE) | (GUEST.address >> 32) as u32;
        let mut audit = bound();
        let mut words = inc(1, host::MEM_OP_A, &[0, 0, c, d]);
        assert_eq!(audit.check(&mut words), Ok(false));
        assert!(audit.invalidated);
        assert_eq!(words[3] & !0xfff, SHADOW.address as u32);
        assert_eq!(mem_op::D_PDB_HI.get(words[4]), 7);
        let foreign = inc(1, host::MEM_OP_A, &[0, 0, c ^ 0x1000, d]);
        assert!(bound().check(&mut foreign.clone()).is_err());
        let all = inc(1, host::MEM_OP_A, &[0, 0, c | 1, d]);
        assert!(bound().check(&mut all.clone()).is_err());
        // The shadow's own name is not the guest's.
        let d = mem_op::D_OPERATION.of(mem_op::MMU_TLB_INVALIDATE) | (SHADOW.address >> 32) as u32;
        assert!(bound().check(&mut inc(1, host::MEM_OP_A, &[0, 0, SHADOW.address as u32, d])).is_err());
    }

    #[test]
    fn privileged_methods_are_refused() {
        for method in [host::CLEAR_FAULTED, host::ILLEGAL, 0x24, 0xfc] {
            assert!(bound().check(&mut inc(0, method, &[0])).is_err(), "{method:#x}");
        }
        assert!(bound().check(&mut vec![Header::new(6, 0, 0x200, 1).0]).is_err());
        assert!(bound().check(&mut vec![Header::TERT_OP.of(1)]).is_err(), "a subdevice mask");
    }

    #[test]
    fn what_follows_the_end_of_a_segment_is_gone() {
        let end = Header::new(Header::OP_END_SEGMENT, 0, 0, 0).0;
        let mut words = vec![0, end, 0xdead_beef];
        assert_eq!(bound().check(&mut words), Ok(true));
        assert_eq!(words, [0]);
    }

    #[test]
    fn what_was_checked_is_not_looked_at_again() {
        let illegal = inc(0, host::ILLEGAL, &[0]);
        let mut words = illegal.clone();
        words.push(0);
        assert_eq!(bound().check_behind(&mut words, illegal.len()), Ok(false));
        words.extend(&illegal);
        assert!(bound().check_behind(&mut words, illegal.len()).is_err());
    }
}
