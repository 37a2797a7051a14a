//! Sets of registers. Most registers live in one node only, so a set keeps nothing but the words that are not empty: the
//! sets of all nodes together are about as large as what is really in them.

use ptx::ir::Reg;

/// A set of registers: words of 64 bits with their indices, ascending, none of them zero.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RegSet(Vec<(u32, u64)>);

fn place(r: Reg) -> (u32, u64) {
    (r.0 / 64, 1 << (r.0 % 64))
}

impl RegSet {
    /// Where the word with this index is, or would be.
    fn find(&self, word: u32) -> Result<usize, usize> {
        match self.0.last() {
            Some(&(last, _)) if last < word => Err(self.0.len()),
            _ => self.0.binary_search_by_key(&word, |&(word, _)| word),
        }
    }

    /// True if it was not there.
    pub(crate) fn insert(&mut self, r: Reg) -> bool {
        let (word, bit) = place(r);
        match self.find(word) {
            Ok(at) => {
                let new = self.0[at].1 & bit == 0;
                self.0[at].1 |= bit;
                new
            }
            Err(at) => {
                self.0.insert(at, (word, bit));
                true
            }
        }
    }

    /// True if it was there.
    pub(crate) fn remove(&mut self, r: Reg) -> bool {
        let (word, bit) = place(r);
        let Ok(at) = self.find(word) else { return false };
        let had = self.0[at].1 & bit != 0;
        self.0[at].1 &= !bit;
        if self.0[at].1 == 0 {
            self.0.remove(at);
        }
        had
    }

    pub(crate) fn contains(&self, r: Reg) -> bool {
        let (word, bit) = place(r);
        self.find(word).is_ok_and(|at| self.0[at].1 & bit != 0)
    }

    /// Adds all of `other`; true if that changed something.
    pub(crate) fn add(&mut self, other: &RegSet) -> bool {
        self.add_but(other, &RegSet::default())
    }

    /// Adds all of `other` that is not in `but`; true if that changed something.
    pub(crate) fn add_but(&mut self, other: &RegSet, but: &RegSet) -> bool {
        let mut but = but.0.iter().peekable();
        let mut at = 0;
        let mut changed = false;
        let mut more: Vec<(u32, u64)> = Vec::new();
        for &(word, mut bits) in &other.0 {
            while but.next_if(|b| b.0 < word).is_some() {}
            if let Some(&&(w, without)) = but.peek()
                && w == word
            {
                bits &= !without;
            }
            if bits == 0 {
                continue;
            }
            while self.0.get(at).is_some_and(|mine| mine.0 < word) {
                at += 1;
            }
            match self.0.get_mut(at) {
                Some(mine) if mine.0 == word => {
                    changed |= bits & !mine.1 != 0;
                    mine.1 |= bits;
                }
                _ => more.push((word, bits)),
            }
        }
        if more.is_empty() {
            return changed;
        }
        // Words that were not there: merged in one go.
        let mine = std::mem::take(&mut self.0);
        self.0.reserve(mine.len() + more.len());
        let mut mine = mine.into_iter().peekable();
        for new in more {
            while let Some(old) = mine.next_if(|old| old.0 < new.0) {
                self.0.push(old);
            }
            self.0.push(new);
        }
        self.0.extend(mine);
        true
    }

    pub(crate) fn and(&self, other: &RegSet) -> RegSet {
        let mut theirs = other.0.iter().peekable();
        let mut both = Vec::new();
        for &(word, bits) in &self.0 {
            while theirs.next_if(|t| t.0 < word).is_some() {}
            match theirs.peek() {
                Some(&&(w, b)) if w == word && bits & b != 0 => both.push((word, bits & b)),
                Some(_) => {}
                None => break,
            }
        }
        RegSet(both)
    }

    /// How large it is, for who counts what sets cost.
    pub(crate) fn words(&self) -> usize {
        self.0.len()
    }

    /// Its registers, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Reg> + '_ {
        self.0.iter().flat_map(|&(word, bits)| {
            let mut left = bits;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                (left != 0).then(|| {
                    left &= left - 1;
                    Reg(word * 64 + bit)
                })
            })
        })
    }
}

/// A set that much is added to: a bit for every register.
#[derive(Debug)]
pub(crate) struct Sum(Vec<u64>);

impl Sum {
    /// Empty, for so many registers.
    pub(crate) fn of(registers: usize) -> Sum {
        Sum(vec![0; registers.div_ceil(64)])
    }

    /// How much work it is to take it.
    pub(crate) fn words(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn add(&mut self, set: &RegSet) {
        for &(word, bits) in &set.0 {
            self.0[word as usize] |= bits;
        }
    }

    /// What is in it; it is empty again.
    pub(crate) fn take(&mut self) -> RegSet {
        let words = self.0.iter_mut().map(std::mem::take).zip(0..);
        RegSet(words.filter(|&(bits, _)| bits != 0).map(|(bits, word)| (word, bits)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Random operations on it and on the set of the standard library.
    #[test]
    fn is_a_set() {
        let mut state = 1_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        let list = |set: &RegSet| set.iter().map(|r| r.0).collect::<Vec<_>>();
        for round in 0..200 {
            let span = if round % 2 == 0 { 100 } else { 5000 };
            let mut fill = |n: u32| {
                let (mut set, mut twin) = (RegSet::default(), BTreeSet::new());
                for _ in 0..n {
                    let r = random(span);
                    if random(4) == 0 {
                        assert_eq!(set.remove(Reg(r)), twin.remove(&r));
                    } else {
                        assert_eq!(set.insert(Reg(r)), twin.insert(r));
                    }
                    assert_eq!(set.contains(Reg(r)), twin.contains(&r));
                }
                (set, twin)
            };
            let ((mut a, mut a2), (b, b2), (c, c2)) = (fill(60), fill(40), fill(30));
            let and: Vec<u32> = a2.intersection(&b2).copied().collect();
            assert_eq!(list(&a.and(&b)), and);
            let before = a2.len();
            a2.extend(b2.difference(&c2));
            assert_eq!(a.add_but(&b, &c), a2.len() > before);
            assert_eq!(list(&a), a2.iter().copied().collect::<Vec<_>>());
            a2.extend(&b2);
            let mut sum = Sum::of(5000);
            sum.add(&b);
            sum.add(&a);
            a.add(&b);
            assert_eq!((sum.take(), sum.take()), (a.clone(), RegSet::default()));
            assert_eq!(list(&a), a2.into_iter().collect::<Vec<_>>());
            assert!(!a.add(&b));
        }
    }
}
