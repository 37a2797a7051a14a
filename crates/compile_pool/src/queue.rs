//! Whose turn it is.

use std::collections::{HashMap, VecDeque};

/// Things that wait, by tenant; tenants have equal turns.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    tenants: HashMap<u64, VecDeque<T>>,
    /// Tenants with something that waits, each once, the next first.
    turns: VecDeque<u64>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { tenants: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    /// Behind all that its tenant has waiting.
    pub(crate) fn push(&mut self, tenant: u64, thing: T) {
        self.queue_of(tenant).push_back(thing);
    }

    /// Before all that its tenant has waiting.
    pub(crate) fn push_front(&mut self, tenant: u64, thing: T) {
        self.queue_of(tenant).push_front(thing);
    }

    fn queue_of(&mut self, tenant: u64) -> &mut VecDeque<T> {
        let Queue { tenants, turns } = self;
        tenants.entry(tenant).or_insert_with(|| {
            turns.push_back(tenant);
            VecDeque::new()
        })
    }

    /// A thing of the first tenant in turn for which `which` says one: where it is among those of the tenant. That tenant's
    /// next turn comes after all others'.
    pub(crate) fn pop(&mut self, which: impl Fn(u64, &VecDeque<T>) -> Option<usize>) -> Option<T> {
        let found = |(at, tenant): (usize, &u64)| Some((at, which(*tenant, self.tenants.get(tenant)?)?));
        let (at, index) = self.turns.iter().enumerate().find_map(found)?;
        let tenant = self.turns.remove(at)?;
        let waiting = self.tenants.get_mut(&tenant)?;
        let thing = waiting.remove(index);
        if waiting.is_empty() {
            self.tenants.remove(&tenant);
        } else {
            self.turns.push_back(tenant);
        }
        thing
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, tenant: u64, which: impl Fn(&T) -> bool) -> Option<T> {
        let waiting = self.tenants.get_mut(&tenant)?;
        let at = waiting.iter().position(which)?;
        let thing = waiting.remove(at);
        if waiting.is_empty() {
            self.tenants.remove(&tenant);
            self.turns.retain(|&other| other != tenant);
        }
        thing
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.tenants.values().map(VecDeque::len).sum()
    }

    /// Tenants with something that waits, and what.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = (u64, &VecDeque<T>)> {
        self.turns.iter().filter_map(|&tenant| Some((tenant, self.tenants.get(&tenant)?)))
    }

    /// What waits of one tenant.
    pub(crate) fn of(&self, tenant: u64) -> impl Iterator<Item = &T> {
        self.tenants.get(&tenant).into_iter().flatten()
    }

    /// Takes everything out.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.turns.clear();
        std::mem::take(&mut self.tenants).into_values().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_take_turns_whatever_they_queue() {
        let mut queue = Queue::default();
        for n in 0..100 {
            queue.push(1, n);
        }
        queue.push(2, 1000);
        queue.push(3, 2000);
        queue.push_front(3, 1999);
        let order: Vec<i32> = (0..6).map(|_| queue.pop(|_, _| Some(0)).unwrap()).collect();
        assert_eq!(order, [0, 1000, 1999, 1, 2000, 2]);
        assert_eq!(queue.pop(|tenant, _| (tenant != 1).then_some(0)), None, "only 1 has any left");
        assert_eq!(queue.remove(1, |&n| n == 50), Some(50));
        assert_eq!(queue.remove(1, |&n| n == 50), None);
        queue.push(7, 7);
        assert_eq!(queue.remove(7, |_| true), Some(7));
        assert_eq!(queue.tenants().map(|(tenant, _)| tenant).collect::<Vec<_>>(), [1]);
        assert_eq!(queue.len(), 96);
        assert_eq!(queue.drain().len(), 96);
        assert_eq!(queue.len(), 0);
        assert_eq!(queue.pop(|_, _| Some(0)), None);
    }
}
