//! What a guest may have.

use gpu_spec::mmu::{PhysAddr, Pte, SMALL_PAGE};

use super::image::Image;
use crate::format::Format;
use crate::walk::leads_to;

/// A piece of host memory that belongs to a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted {
    /// Where the host has it.
    pub at: PhysAddr,
    /// For how many bytes from there it is contiguous, for the guest and for the host.
    pub bytes: u64,
    /// The guest may not have it written.
    pub read_only: bool,
}

/// What a guest may have of physical memory: from its addresses to the host's.
pub trait Grant {
    /// What lies at the guest's address `at`; `None` if it has no memory there.
    fn grant(&self, at: PhysAddr) -> Option<Granted>;
}

impl<T: Grant + ?Sized> Grant for &T {
    fn grant(&self, at: PhysAddr) -> Option<Granted> {
        (**self).grant(at)
    }
}

/// Host memory by its own addresses: for pages of the mediator's own.
pub(super) struct Everything;

impl Grant for Everything {
    fn grant(&self, at: PhysAddr) -> Option<Granted> {
        Some(Granted { at, bytes: u64::MAX - at.address, read_only: false })
    }
}

/// A grant that is asked again and again for what lies side by side.
pub(super) struct Grants<'a, G> {
    grant: &'a G,
    /// The last answer, and the guest's address that it is for.
    last: Option<(PhysAddr, Granted)>,
}

impl<'a, G: Grant> Grants<'a, G> {
    pub(super) fn new(grant: &'a G) -> Grants<'a, G> {
        Grants { grant, last: None }
    }

    pub(super) fn get(&mut self, at: PhysAddr) -> Option<Granted> {
        if let Some((from, granted)) = self.last
            && from.aperture == at.aperture
            && let Some(skip) = at.address.checked_sub(from.address)
            && skip < granted.bytes
        {
            return Some(Granted { at: granted.at.offset(skip), bytes: granted.bytes - skip, ..granted });
        }
        let granted = self.grant.grant(at)?;
        self.last = Some((at, granted));
        Some(granted)
    }

    /// Makes `image` show what a guest's entry for a page of `bytes` and the grant both allow, from small page `first` of
    /// the unit on. False if the grant allows less than the entry asks for.
    pub(super) fn show<F: Format>(&mut self, image: &mut Image<F>, first: usize, pte: Pte, bytes: u64) -> bool {
        if pte.is_sparse() {
            image.set(first, bytes, pte);
            return true;
        }
        let Some(at) = leads_to(pte, bytes) else {
            image.set(first, bytes, Pte::INVALID);
            return true;
        };
        self.fill(image, first, bytes, at, pte)
    }

    /// As [`Grants::show`], for `bytes` of the guest's memory from `at`, shown with the largest pages that fit, with the
    /// rights of `like`.
    pub(super) fn fill<F: Format>(
        &mut self,
        image: &mut Image<F>,
        first: usize,
        bytes: u64,
        at: PhysAddr,
        like: Pte,
    ) -> bool {
        let mut whole = true;
        let mut done = 0;
        while done < bytes {
            let place = first as u64 * SMALL_PAGE + done;
            let granted = self.get(at.offset(done));
            let fits = |page: &u64| {
                place.is_multiple_of(*page)
                    && *page <= bytes - done
                    && granted.is_some_and(|granted| granted.bytes >= *page && granted.at.address.is_multiple_of(*page))
            };
            let page = F::LARGE_PAGES.iter().copied().find(fits).unwrap_or(SMALL_PAGE);
            let pte = granted.filter(|_| fits(&page)).and_then(|granted| entry::<F>(granted, like));
            whole &= pte.is_some();
            image.set((place / SMALL_PAGE) as usize, page, pte.unwrap_or(Pte::INVALID));
            done += page;
        }
        whole
    }
}

/// An entry for host memory with the rights, and the other bits that are carried over, of another; `None` if there is none.
pub(super) fn entry<F: Format>(granted: Granted, like: Pte) -> Option<Pte> {
    let mut rights = like.rights();
    rights.read_only |= granted.read_only;
    let pte = F::to_page(granted.at, rights)?;
    Some(Pte(pte.0 & !F::CARRIED | like.0 & F::CARRIED))
}
