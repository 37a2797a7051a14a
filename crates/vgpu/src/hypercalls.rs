//! Hypercalls of para-virtualized guests: entries for shadow tables, checked against the grant one by one.

use gmmu::{PhysMem, ShadowError};
use gpu_spec::mmu::{PhysAddr, Rights};
use gpu_spec::pv::{self, Call};
use zerocopy::{FromZeros, IntoBytes};

use crate::Scheme;
use crate::counts::Counters;
use crate::mediator::{Inner, Vgpu};
use crate::space::{Space, has_room};

/// Address spaces that a guest may make.
const MOST_SPACES: usize = 256;

impl Vgpu {
    /// Whether the guest may make hypercalls.
    pub(crate) fn offers_hypercalls(&self) -> bool {
        self.config.scheme == Scheme::Pv
    }

    /// Does the calls that the guest has left at `area`; 0, or how many were done before one that was not, plus 1.
    pub(crate) fn multicall(&self, area: u64, count: u32) -> u32 {
        if !self.offers_hypercalls() {
            return 1;
        }
        let count = (count as usize).min(pv::MOST_CALLS);
        let mut calls = vec![Call::new_zeroed(); count];
        let mut inner = self.inner.lock();
        if inner.memory.read(PhysAddr::vram(area), calls.as_mut_bytes()).is_err() {
            log_limit::warn!(
                guest = self.config.name,
                area,
                count,
                "the area of hypercalls is not in the guest's VRAM"
            );
            return 1;
        }
        let mut status = 0;
        for (done, call) in calls.iter().enumerate() {
            // What the device has to forget of one space is told at once, for all calls in a row that change it.
            let last = calls.get(done + 1).is_none_or(|next| next.root != call.root || next.code < pv::MAP);
            let result = self.call(&mut inner, call, last);
            Counters::add(&self.counters.hypercalls, 1);
            let result = if self.lines.is_lost() { Err("the virtual GPU has ended".into()) } else { result };
            if let Err(reason) = result {
                log_limit::warn!(guest = self.config.name, ?call, reason, "a hypercall is refused");
                status = done as u32 + 1;
                break;
            }
        }
        status
    }

    fn call(&self, inner: &mut Inner, call: &Call, last: bool) -> Result<(), String> {
        let root = PhysAddr::vram(call.root);
        let Inner { tables, spaces, memory, watch, .. } = inner;
        if call.code == pv::CREATE {
            let window = (call.va, call.bytes);
            if spaces.contains_key(&root) {
                return Err("there is an address space of this name".into());
            }
            if spaces.len() >= MOST_SPACES || !has_room(spaces, window) {
                return Err("the address spaces are too many, or too large all together".into());
            }
            let space = Space::new(tables, root, window, true).map_err(|error| error.to_string())?;
            spaces.insert(root, space);
            return Ok(());
        }
        let space = spaces.get_mut(&root).filter(|space| space.entered).ok_or("no such address space")?;
        let Space { shadow, changes, .. } = space;
        let text = |error: ShadowError| error.to_string();
        let done = match call.code {
            pv::MAP => {
                let rights = Rights {
                    read_only: call.flags & pv::READ_ONLY != 0,
                    atomic_disable: call.flags & pv::ATOMIC_DISABLE != 0,
                    ..Rights::default()
                };
                let system = call.flags & pv::SYSTEM != 0;
                let at = if system { PhysAddr::system(call.at) } else { PhysAddr::vram(call.at) };
                shadow.enter(call.va, call.bytes, at, rights, &*memory, tables, changes).map_err(text)
            }
            pv::UNMAP => shadow.remove(call.va, call.bytes, tables, changes).map_err(text),
            pv::DESTROY => {
                let (lo, bytes) = space.window();
                space.shadow.remove(lo, bytes, tables, &mut space.changes).map_err(text)
            }
            // What came before it is told to the device all the same.
            code => Err(format!("no hypercall {code}")),
        };
        if last || done.is_err() || call.code == pv::DESTROY {
            space.publish(tables, &self.lease).map_err(|error| error.to_string())?;
            Counters::add(&self.counters.shadow_updates, 1);
        }
        done?;
        // Channels that did not stop keep the space, empty.
        if call.code == pv::DESTROY
            && space.channels == 0
            && let Some(space) = spaces.remove(&root)
        {
            space.end(root, tables, &self.lease, watch);
        }
        Ok(())
    }
}
