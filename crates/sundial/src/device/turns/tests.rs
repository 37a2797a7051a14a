//! Turns on a pretended GPU, in virtual time.

use std::cell::RefCell;

use super::*;

/// What the pretended GPU knows of a tenant.
#[derive(Clone, Copy, Debug)]
struct Program {
    /// Length of its commands, and time between the end of one and the next, ns.
    length: u64,
    gap: u64,
    listed: bool,
    /// When it has a command again.
    ready_at: u64,
    progress: u64,
    usage: Usage,
}

/// The GPU: whoever is listed and ready runs, one after another.
#[derive(Debug, Default)]
struct Pretended {
    now: RefCell<u64>,
    programs: RefCell<Vec<Program>>,
}

struct Tenant<'a>(&'a Pretended, usize);

impl Contender for Tenant<'_> {
    fn number(&self) -> u64 {
        100 + self.1 as u64
    }

    fn tenant(&self) -> Key {
        self.1 as u64
    }

    fn usage(&self) -> Usage {
        self.0.programs.borrow()[self.1].usage
    }

    fn is_ready(&self) -> bool {
        self.0.programs.borrow()[self.1].ready_at <= *self.0.now.borrow()
    }

    fn launched(&self) -> u64 {
        self.usage().kernels + u64::from(self.is_ready())
    }

    fn run(&self, run: bool) {
        self.0.programs.borrow_mut()[self.1].listed = run;
    }
}

impl Pretended {
    fn new(programs: &[(u64, u64)]) -> Pretended {
        let program = |&(length, gap): &(u64, u64)| Program {
            length,
            gap,
            listed: true,
            ready_at: 0,
            progress: 0,
            usage: Usage::default(),
        };
        Pretended { now: RefCell::new(0), programs: RefCell::new(programs.iter().map(program).collect()) }
    }

    fn pass(&self, ns: u64) {
        const STEP: u64 = 10_000;
        for _ in 0..ns / STEP {
            let mut now = self.now.borrow_mut();
            let mut programs = self.programs.borrow_mut();
            if let Some(program) = programs.iter_mut().find(|program| program.listed && program.ready_at <= *now) {
                program.progress += STEP;
                program.usage.gpu_time_ns += STEP;
                if program.progress >= program.length {
                    program.progress = 0;
                    program.usage.kernels += 1;
                    program.ready_at = *now + STEP + program.gap;
                }
            }
            *now += STEP;
        }
    }

    fn used(&self) -> Vec<u64> {
        self.programs.borrow().iter().map(|program| program.usage.gpu_time_ns).collect()
    }
}

/// Parts of the time that each got from the second to the third second, percent.
fn parts(rule: Rule, programs: &[(u64, u64)]) -> Vec<f64> {
    let gpu = Pretended::new(programs);
    let tenants: Vec<Tenant<'_>> = (0..programs.len()).map(|index| Tenant(&gpu, index)).collect();
    let (mut turns, mut contest, field) = (Turns::default(), Contest::new(rule), field(&tenants));
    contest.enlist(&HashMap::new(), &field);
    let mut at = Vec::new();
    for second in 1..=3 {
        while *gpu.now.borrow() < second * 1_000_000_000 {
            let now = *gpu.now.borrow();
            turns.look(&mut contest, &field, now);
            // What a sleep of 50 us comes to.
            gpu.pass(contest.pause(now).as_nanos() as u64 + 60_000);
            assert!(gpu.programs.borrow().iter().filter(|program| program.listed).count() <= 1);
        }
        at.push(gpu.used());
    }
    let spent: Vec<u64> = at[2].iter().zip(&at[1]).map(|(after, before)| after - before).collect();
    let all: u64 = spent.iter().sum();
    spent.iter().map(|ns| 100.0 * *ns as f64 / all as f64).collect()
}

#[test]
fn commands_are_taken_in_turns() {
    let programs = [(100_000, 30_000), (1_000_000, 30_000), (10_000_000, 30_000)];
    for rule in [Rule::Fifo, Rule::Credit] {
        let parts = parts(rule, &programs);
        assert!(parts[0] < 15.0 && parts[2] > 55.0, "{rule:?}: {parts:?}");
    }
    let parts = parts(Rule::Band, &programs);
    assert!(parts.iter().all(|part| (part - 33.3).abs() < 2.0), "{parts:?}");
}

#[test]
fn an_endless_command_is_not_the_end() {
    let gpu = Pretended::new(&[(u64::MAX, 0), (1_000_000, 30_000)]);
    let tenants = [Tenant(&gpu, 0), Tenant(&gpu, 1)];
    let (mut turns, mut contest, field) = (Turns::default(), Contest::new(Rule::Fifo), field(&tenants));
    contest.enlist(&HashMap::new(), &field);
    while gpu.programs.borrow()[1].usage.kernels < 3 {
        let now = *gpu.now.borrow();
        assert!(now < 20_000_000_000, "it has kept the GPU");
        turns.look(&mut contest, &field, now);
        gpu.pass(1_000_000);
    }
    assert!(gpu.used()[0] > 3_000_000_000, "it goes on in its turns");
}

#[test]
fn who_is_alone_is_left_alone() {
    let gpu = Pretended::new(&[(1_000_000, 0), (1_000_000, u64::MAX / 2), (1_000_000, 0)]);
    let tenants = [Tenant(&gpu, 0), Tenant(&gpu, 1), Tenant(&gpu, 2)];
    let mut turns = Turns::default();
    let take = |turns: &mut Turns, tenants: &[Tenant<'_>]| {
        turns.take(Rule::Band, &HashMap::new(), tenants, Duration::from_millis(1), || false)
    };
    assert!(!take(&mut turns, &tenants[..1]));
    // The second has had its only command, the first works on.
    gpu.programs.borrow_mut()[1].ready_at = u64::MAX;
    assert!(!take(&mut turns, &tenants[..2]));
    assert!(take(&mut turns, &tenants));
    assert_eq!(gpu.programs.borrow().iter().filter(|program| program.listed).count(), 1);
    // One is left.
    assert!(!take(&mut turns, &tenants[..1]));
    assert!(gpu.programs.borrow()[0].listed && turns.contest.is_none());
}
