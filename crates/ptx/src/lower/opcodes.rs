//! The table from opcodes to their forms.

use super::body::Body;
use super::mods::Mods;
use super::video::Scalar;
use crate::error::PtxError;
use crate::ir::{AtomOp, IntOp, IntUnOp, MulPart, VideoOp};

/// How an opcode is decoded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Form {
    AddSub {
        sub: bool,
    },
    AddSubCarry {
        sub: bool,
    },
    Mul,
    Mad,
    MadCarry,
    Mul24,
    Mad24,
    Fma,
    Sad,
    Div,
    Rem,
    MinMax {
        max: bool,
    },
    AbsNeg {
        neg: bool,
    },
    Copysign,
    Rcp,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Lg2,
    Ex2,
    Tanh,
    Testp,
    Logic(IntOp),
    Not,
    Cnot,
    Shift(IntOp),
    Count(IntUnOp),
    Bfind,
    Bfe,
    Bfi,
    Bmsk,
    Szext,
    Fns,
    Prmt,
    Shf,
    Lop3,
    Dot {
        four: bool,
    },
    ScalarVideo(Scalar),
    Vmad,
    PackedVideo {
        op: VideoOp,
        lanes: u8,
    },
    PackedSet {
        lanes: u8,
    },
    Setp,
    Set,
    Selp,
    Slct,
    Mov,
    Cvt,
    Cvta,
    Isspacep,
    Ld,
    St,
    Alloca,
    Stacksave,
    Stackrestore,
    Atom {
        red: bool,
    },
    CpAsync,
    LaunchControl,
    Mbarrier,
    Fence,
    Bar,
    Shfl,
    Vote,
    Match,
    Redux,
    Activemask,
    Elect,
    Mma,
    Wmma,
    Ldmatrix,
    Stmatrix,
    Movmatrix,
    Mapa,
    Getctarank,
    Tex,
    Tld4,
    ImageQuery {
        surface: bool,
    },
    Suld,
    Sust,
    Sured,
    Istypep,
    Bra,
    Brx,
    Call,
    Ret,
    Exit,
    Trap,
    Nanosleep,
    /// Changes nothing that a program can see.
    Tensormap,
    Hint,
    Createpolicy,
}

/// Opcodes, sorted.
static FORMS: &[(&str, Form)] = &[
    ("abs", Form::AbsNeg { neg: false }),
    ("activemask", Form::Activemask),
    ("add", Form::AddSub { sub: false }),
    ("addc", Form::AddSubCarry { sub: false }),
    ("alloca", Form::Alloca),
    ("and", Form::Logic(IntOp::And)),
    ("applypriority", Form::Hint),
    ("atom", Form::Atom { red: false }),
    ("bar", Form::Bar),
    ("barrier", Form::Bar),
    ("bfe", Form::Bfe),
    ("bfi", Form::Bfi),
    ("bfind", Form::Bfind),
    ("bmsk", Form::Bmsk),
    ("bra", Form::Bra),
    ("brev", Form::Count(IntUnOp::Brev)),
    ("brkpt", Form::Trap),
    ("brx", Form::Brx),
    ("call", Form::Call),
    ("clusterlaunchcontrol", Form::LaunchControl),
    ("clz", Form::Count(IntUnOp::Clz)),
    ("cnot", Form::Cnot),
    ("copysign", Form::Copysign),
    ("cos", Form::Cos),
    ("cp", Form::CpAsync),
    ("createpolicy", Form::Createpolicy),
    ("cvt", Form::Cvt),
    ("cvta", Form::Cvta),
    ("discard", Form::Hint),
    ("div", Form::Div),
    ("dp2a", Form::Dot { four: false }),
    ("dp4a", Form::Dot { four: true }),
    ("elect", Form::Elect),
    ("ex2", Form::Ex2),
    ("exit", Form::Exit),
    ("fence", Form::Fence),
    ("fma", Form::Fma),
    ("fns", Form::Fns),
    ("getctarank", Form::Getctarank),
    ("griddepcontrol", Form::Hint),
    ("isspacep", Form::Isspacep),
    ("istypep", Form::Istypep),
    ("ld", Form::Ld),
    ("ldmatrix", Form::Ldmatrix),
    ("ldu", Form::Ld),
    ("lg2", Form::Lg2),
    ("lop3", Form::Lop3),
    ("mad", Form::Mad),
    ("mad24", Form::Mad24),
    ("madc", Form::MadCarry),
    ("mapa", Form::Mapa),
    ("match", Form::Match),
    ("max", Form::MinMax { max: true }),
    ("mbarrier", Form::Mbarrier),
    ("membar", Form::Fence),
    ("min", Form::MinMax { max: false }),
    ("mma", Form::Mma),
    ("mov", Form::Mov),
    ("movmatrix", Form::Movmatrix),
    ("mul", Form::Mul),
    ("mul24", Form::Mul24),
    ("nanosleep", Form::Nanosleep),
    ("neg", Form::AbsNeg { neg: true }),
    ("not", Form::Not),
    ("or", Form::Logic(IntOp::Or)),
    ("pmevent", Form::Hint),
    ("popc", Form::Count(IntUnOp::Popc)),
    ("prefetch", Form::Hint),
    ("prefetchu", Form::Hint),
    ("prmt", Form::Prmt),
    ("rcp", Form::Rcp),
    ("red", Form::Atom { red: true }),
    ("redux", Form::Redux),
    ("rem", Form::Rem),
    ("ret", Form::Ret),
    ("rsqrt", Form::Rsqrt),
    ("sad", Form::Sad),
    ("selp", Form::Selp),
    ("set", Form::Set),
    ("setmaxnreg", Form::Hint),
    ("setp", Form::Setp),
    ("shf", Form::Shf),
    ("shfl", Form::Shfl),
    ("shl", Form::Shift(IntOp::Shl)),
    ("shr", Form::Shift(IntOp::Shr)),
    ("sin", Form::Sin),
    ("slct", Form::Slct),
    ("sqrt", Form::Sqrt),
    ("st", Form::St),
    ("stackrestore", Form::Stackrestore),
    ("stacksave", Form::Stacksave),
    ("stmatrix", Form::Stmatrix),
    ("sub", Form::AddSub { sub: true }),
    ("subc", Form::AddSubCarry { sub: true }),
    ("suld", Form::Suld),
    ("suq", Form::ImageQuery { surface: true }),
    ("sured", Form::Sured),
    ("sust", Form::Sust),
    ("szext", Form::Szext),
    ("tanh", Form::Tanh),
    ("tensormap", Form::Tensormap),
    ("testp", Form::Testp),
    ("tex", Form::Tex),
    ("tld4", Form::Tld4),
    ("trap", Form::Trap),
    ("txq", Form::ImageQuery { surface: false }),
    ("vabsdiff", Form::ScalarVideo(Scalar::AbsDiff)),
    ("vabsdiff2", Form::PackedVideo { op: VideoOp::AbsDiff, lanes: 2 }),
    ("vabsdiff4", Form::PackedVideo { op: VideoOp::AbsDiff, lanes: 4 }),
    ("vadd", Form::ScalarVideo(Scalar::Add)),
    ("vadd2", Form::PackedVideo { op: VideoOp::Add, lanes: 2 }),
    ("vadd4", Form::PackedVideo { op: VideoOp::Add, lanes: 4 }),
    ("vavrg2", Form::PackedVideo { op: VideoOp::Avrg, lanes: 2 }),
    ("vavrg4", Form::PackedVideo { op: VideoOp::Avrg, lanes: 4 }),
    ("vmad", Form::Vmad),
    ("vmax", Form::ScalarVideo(Scalar::Max)),
    ("vmax2", Form::PackedVideo { op: VideoOp::Max, lanes: 2 }),
    ("vmax4", Form::PackedVideo { op: VideoOp::Max, lanes: 4 }),
    ("vmin", Form::ScalarVideo(Scalar::Min)),
    ("vmin2", Form::PackedVideo { op: VideoOp::Min, lanes: 2 }),
    ("vmin4", Form::PackedVideo { op: VideoOp::Min, lanes: 4 }),
    ("vote", Form::Vote),
    ("vset", Form::ScalarVideo(Scalar::Set)),
    ("vset2", Form::PackedSet { lanes: 2 }),
    ("vset4", Form::PackedSet { lanes: 4 }),
    ("vshl", Form::ScalarVideo(Scalar::Shl)),
    ("vshr", Form::ScalarVideo(Scalar::Shr)),
    ("vsub", Form::ScalarVideo(Scalar::Sub)),
    ("vsub2", Form::PackedVideo { op: VideoOp::Sub, lanes: 2 }),
    ("vsub4", Form::PackedVideo { op: VideoOp::Sub, lanes: 4 }),
    ("wmma", Form::Wmma),
    ("xor", Form::Logic(IntOp::Xor)),
];

/// PTX's other opcodes, sorted, with the name of what they belong to.
static UNSUPPORTED: &[(&str, &str)] = &[
    ("multimem", "multimem instructions"),
    ("tcgen05", "tensor memory instructions"),
    ("wgmma", "matrix instructions of warp groups"),
];

/// The form of an opcode.
pub(super) fn form(base: &str) -> Option<Form> {
    FORMS.binary_search_by_key(&base, |(name, _)| name).ok().map(|at| FORMS[at].1)
}

/// What an opcode belongs to that is PTX, but not supported.
pub(super) fn unsupported(base: &str) -> Option<&'static str> {
    UNSUPPORTED.binary_search_by_key(&base, |(name, _)| name).ok().map(|at| UNSUPPORTED[at].1)
}

impl<'a> Body<'a, '_> {
    /// Decodes an instruction whose opcode has been read.
    pub(super) fn form(&mut self, form: Form, mut mods: Mods<'a>) -> Result<(), PtxError> {
        match form {
            Form::Bra => return self.bra(mods),
            Form::Brx => return self.brx(mods),
            Form::Call => return self.call(mods),
            // Their operands may be of kinds that nothing else has.
            Form::Hint => return self.skip_statement(),
            // These have operands of their own kind.
            Form::Tex
            | Form::Tld4
            | Form::ImageQuery { .. }
            | Form::Suld
            | Form::Sust
            | Form::Sured
            | Form::Istypep => {}
            _ => self.parse_args()?,
        }
        let m = &mut mods;
        match form {
            Form::AddSub { sub } => self.add_sub(m, sub),
            Form::AddSubCarry { sub } => self.add_sub_carry(m, sub),
            Form::Mul => self.mul(m),
            Form::Mad => self.mad(m),
            Form::MadCarry => self.mad_carry(m),
            Form::Mul24 => self.mul24(m, false),
            Form::Mad24 => self.mul24(m, true),
            Form::Fma => self.fma(m),
            Form::Sad => self.sad(m),
            Form::Div => self.div(m),
            Form::Rem => self.int2(m, IntOp::Rem),
            Form::MinMax { max } => self.min_max(m, max),
            Form::AbsNeg { neg } => self.abs_neg(m, neg),
            Form::Copysign => self.copysign(m),
            Form::Rcp | Form::Sqrt | Form::Rsqrt => self.root(m, form),
            Form::Sin | Form::Cos | Form::Lg2 | Form::Ex2 | Form::Tanh => self.transcendental(m, form),
            Form::Testp => self.testp(m),
            Form::Logic(op) => self.logic(m, op),
            Form::Not => self.not(m),
            Form::Cnot => self.cnot(m),
            Form::Shift(op) => self.shift(m, op),
            Form::Count(op) => self.count_bits(m, op),
            Form::Bfind => self.bfind(m),
            Form::Bfe => self.bfe(m),
            Form::Bfi => self.bfi(m),
            Form::Bmsk => self.bmsk(m),
            Form::Szext => self.szext(m),
            Form::Fns => self.fns(m),
            Form::Prmt => self.prmt(m),
            Form::Shf => self.shf(m),
            Form::Lop3 => self.lop3(m),
            Form::Dot { four } => self.dot(m, four),
            Form::ScalarVideo(op) => self.scalar_video(m, op),
            Form::Vmad => self.vmad(m),
            Form::PackedVideo { op, lanes } => self.packed_video(m, op, lanes),
            Form::PackedSet { lanes } => self.packed_set(m, lanes),
            Form::Setp => self.setp(m),
            Form::Set => self.set(m),
            Form::Selp => self.selp(m),
            Form::Slct => self.slct(m),
            Form::Mov => self.mov(m),
            Form::Cvt => self.cvt(m),
            Form::Cvta => self.cvta(m),
            Form::Isspacep => self.isspacep(m),
            Form::Ld => self.ld(m),
            Form::St => self.st(m),
            Form::Alloca => self.alloca(m),
            Form::Stacksave => self.stacksave(m),
            Form::Stackrestore => self.stackrestore(m),
            Form::Atom { red } => self.atom(m, red),
            Form::CpAsync => self.cp_async(m),
            Form::LaunchControl => self.launch_control(m),
            Form::Mbarrier => self.mbarrier(m),
            Form::Fence => self.fence(m),
            Form::Bar => self.bar(m),
            Form::Shfl => self.shfl(m),
            Form::Vote => self.vote(m),
            Form::Match => self.match_lanes(m),
            Form::Redux => self.redux(m),
            Form::Activemask => self.activemask(m),
            Form::Elect => self.elect(m),
            Form::Mma => self.mma(m),
            Form::Wmma => self.wmma(m),
            Form::Ldmatrix => self.ldmatrix(m),
            Form::Stmatrix => self.stmatrix(m),
            Form::Movmatrix => self.movmatrix(m),
            Form::Tensormap => self.tensormap(m),
            Form::Mapa => self.mapa(m),
            Form::Getctarank => self.getctarank(m),
            Form::Tex => self.tex(m),
            Form::Tld4 => self.tld4(m),
            Form::ImageQuery { surface } => self.image_query(m, surface),
            Form::Suld => self.suld(m),
            Form::Sust => self.sust(m),
            Form::Sured => self.sured(m),
            Form::Istypep => self.istypep(m),
            Form::Ret => self.ret(m),
            Form::Exit => self.exit(m),
            Form::Trap => self.trap(m),
            Form::Nanosleep => self.nanosleep(m),
            Form::Createpolicy => self.createpolicy(m),
            Form::Bra | Form::Brx | Form::Call | Form::Hint => Ok(()),
        }?;
        self.finish(&mods)
    }

    /// Every modifier must have been understood.
    pub(super) fn finish(&self, mods: &Mods<'_>) -> Result<(), PtxError> {
        mods.finish().map_err(|e| self.invalid(e))
    }
}

/// Which half of a product, as a modifier.
pub(super) fn part(word: &str) -> Option<MulPart> {
    match word {
        "lo" => Some(MulPart::Lo),
        "hi" => Some(MulPart::Hi),
        "wide" => Some(MulPart::Wide),
        _ => None,
    }
}

/// The operation of an atomic, as a modifier.
pub(super) fn atom_op(word: &str) -> Option<AtomOp> {
    Some(match word {
        "add" => AtomOp::Add,
        "min" => AtomOp::Min,
        "max" => AtomOp::Max,
        "and" => AtomOp::And,
        "or" => AtomOp::Or,
        "xor" => AtomOp::Xor,
        "exch" => AtomOp::Exch,
        "cas" => AtomOp::Cas,
        "inc" => AtomOp::Inc,
        "dec" => AtomOp::Dec,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{FORMS, UNSUPPORTED};

    #[test]
    fn tables_are_sorted() {
        assert!(FORMS.is_sorted_by(|a, b| a.0 < b.0));
        assert!(UNSUPPORTED.is_sorted_by(|a, b| a.0 < b.0));
    }
}
