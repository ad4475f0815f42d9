//! Patterns as RE2J reads them, which Kafka's coordinator does (KIP-848), in the words of the `regex` crate. Pure.
//!
//! One pass takes every construct of RE2J's syntax and writes what means the same; what RE2J refuses is refused. Both match in
//! linear time. Names of groups are dropped: only whether a name matches is asked.

use std::collections::BTreeSet;

/// Most repetitions that may be asked for at once. What those within others amount to is bounded by the compiler's memory.
const REPEAT_MAX: u32 = 1_000;

/// General categories of Unicode that RE2J knows by name.
const CATEGORIES: [&str; 37] = [
    "C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl",
    "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs",
    "Any",
];

/// Scripts whose names are as short as the four-letter codes, which RE2J does not know.
const SHORT_SCRIPTS: [&str; 10] = ["Ahom", "Cham", "Han", "Lao", "Lisu", "Mro", "Nko", "Thai", "Vai", "Yi"];

/// Classes by name within brackets.
const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

/// The pattern in the words of the `regex` crate, or what is wrong with it.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let mut reader = Reader { chars: pattern.chars().collect(), at: 0, out: String::new() };
    reader.pattern()?;
    Ok(reader.out)
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    out: String,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn eat(&mut self, c: char) -> bool {
        let is = self.peek() == Some(c);
        self.at += usize::from(is);
        is
    }

    fn looks_at(&self, text: &str) -> bool {
        self.chars.get(self.at..).unwrap_or_default().iter().copied().take(text.len()).eq(text.chars())
    }

    fn literal(&mut self, c: char) {
        self.out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
    }

    fn pattern(&mut self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        let mut depth = 0_usize;
        let mut repeated = false;
        while let Some(c) = self.next() {
            let was_repeated = std::mem::take(&mut repeated);
            match c {
                '(' if self.peek() == Some('?') => depth += usize::from(self.special(&mut names)?),
                '(' => {
                    self.out.push('(');
                    depth += 1;
                }
                ')' => {
                    self.out.push(')');
                    depth = depth.checked_sub(1).ok_or("unexpected )")?;
                }
                '*' | '+' | '?' => {
                    self.out.push(c);
                    repeated = true;
                }
                '{' if self.counts()? => repeated = true,
                '[' => self.class()?,
                '\\' => self.escape()?,
                '|' | '^' | '$' | '.' => self.out.push(c),
                c => self.literal(c),
            }
            if repeated && self.eat('?') {
                self.out.push('?');
            }
            if repeated && was_repeated {
                return Err("invalid nested repetition operator".into());
            }
        }
        if depth == 0 { Ok(()) } else { Err("missing closing )".into()) }
    }

    /// Behind `(`, at `?`: a group with a name or with flags, or flags alone; whether it opens a group.
    fn special(&mut self, names: &mut BTreeSet<String>) -> Result<bool, String> {
        self.at += 1;
        for opening in ["P<", "<"] {
            if self.looks_at(opening) {
                self.at += opening.len();
                let name = self.until('>').ok_or("invalid named capture")?;
                let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                if !is_name || !names.insert(name) {
                    return Err("invalid named capture".into());
                }
                self.out.push('(');
                return Ok(true);
            }
        }
        let (mut flags, mut negates, mut follows) = (String::new(), false, false);
        loop {
            match self.next() {
                Some(c @ ('i' | 'm' | 's' | 'U')) => {
                    flags.push(c);
                    follows = true;
                }
                Some('-') if !negates => {
                    flags.push('-');
                    (negates, follows) = (true, false);
                }
                Some(end @ (':' | ')')) if !negates || follows => {
                    let opens = end == ':';
                    if opens || !flags.is_empty() {
                        self.out.push_str("(?");
                        self.out.push_str(&flags);
                        self.out.push(end);
                    }
                    return Ok(opens);
                }
                _ => return Err("invalid or unsupported Perl syntax".into()),
            }
        }
    }

    /// Up to `end`, which is passed.
    fn until(&mut self, end: char) -> Option<String> {
        let rest = self.chars.get(self.at..)?;
        let length = rest.iter().position(|c| *c == end)?;
        let text = rest.get(..length)?.iter().collect();
        self.at += length + 1;
        Some(text)
    }

    /// Behind `{`: whether it begins a repetition, which is written then.
    fn counts(&mut self) -> Result<bool, String> {
        let begin = self.at;
        let Some((min, max)) = self.range_of_counts() else {
            self.at = begin;
            return Ok(false);
        };
        if min > REPEAT_MAX || max.is_some_and(|max| max > REPEAT_MAX || min > max) {
            return Err("invalid repeat count".into());
        }
        let text: String = self.chars.get(begin..self.at).unwrap_or_default().iter().collect();
        self.out.push('{');
        self.out.push_str(&text);
        Ok(true)
    }

    /// The least and the most of a repetition; `None`: it is none.
    fn range_of_counts(&mut self) -> Option<(u32, Option<u32>)> {
        let min = self.count()?;
        let max = match self.eat(',') {
            true if self.peek() == Some('}') => None,
            true => Some(self.count()?),
            false => Some(min),
        };
        self.eat('}').then_some((min, max))
    }

    /// A number without zeros in front.
    fn count(&mut self) -> Option<u32> {
        let begin = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let text: String = self.chars.get(begin..self.at)?.iter().collect();
        if text.is_empty() || (text.len() > 1 && text.starts_with('0')) {
            return None;
        }
        Some(text.parse().unwrap_or(u32::MAX))
    }

    /// Behind `\`, outside of brackets.
    fn escape(&mut self) -> Result<(), String> {
        match self.peek() {
            Some('Q') => {
                self.at += 1;
                while let Some(c) = self.peek() {
                    if self.looks_at("\\E") {
                        self.at += 2;
                        break;
                    }
                    self.at += 1;
                    self.literal(c);
                }
                Ok(())
            }
            Some(c @ ('A' | 'b' | 'B' | 'z')) => {
                self.at += 1;
                self.out.push('\\');
                self.out.push(c);
                Ok(())
            }
            _ if self.known_class()? => Ok(()),
            _ => {
                let c = self.escaped_char()?;
                self.literal(c);
                Ok(())
            }
        }
    }

    /// Behind `\`: a class by letter or by name, if it is one.
    fn known_class(&mut self) -> Result<bool, String> {
        match self.peek() {
            Some(c @ ('d' | 'D' | 's' | 'S' | 'w' | 'W')) => {
                self.at += 1;
                self.out.push('\\');
                self.out.push(c);
                Ok(true)
            }
            Some(c @ ('p' | 'P')) => {
                self.at += 1;
                self.property(c == 'P').map(|()| true)
            }
            _ => Ok(false),
        }
    }

    fn property(&mut self, mut negated: bool) -> Result<(), String> {
        let invalid = || "invalid character class range".to_owned();
        let mut name = match self.next().ok_or_else(invalid)? {
            '{' => self.until('}').ok_or_else(invalid)?,
            letter => letter.to_string(),
        };
        if let Some(rest) = name.strip_prefix('^') {
            name = rest.to_owned();
            negated = !negated;
        }
        let of = if CATEGORIES.contains(&name.as_str()) {
            ""
        } else if SHORT_SCRIPTS.contains(&name.as_str()) || is_script_name(&name) {
            // Whether there is such a script is for the compiler to say.
            "sc="
        } else {
            return Err(invalid());
        };
        self.out.push_str(if negated { r"\P{" } else { r"\p{" });
        self.out.push_str(of);
        self.out.push_str(&name);
        self.out.push('}');
        Ok(())
    }

    /// Behind `\`: one character.
    fn escaped_char(&mut self) -> Result<char, String> {
        let invalid = || "invalid escape sequence".to_owned();
        let c = self.next().ok_or("trailing backslash at end of expression")?;
        let is_octal = |c: Option<char>| c.is_some_and(|c| ('0'..='7').contains(&c));
        match c {
            '0' => self.number(8, 2, 0),
            // A single digit would be a reference back.
            '1'..='7' if is_octal(self.peek()) => self.number(8, 2, c.to_digit(8).unwrap_or(0)),
            'x' if self.eat('{') => {
                let digits = self.until('}').ok_or_else(invalid)?;
                let is_hex = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit());
                let code = u32::from_str_radix(&digits, 16).ok().filter(|_| is_hex);
                code.and_then(char::from_u32).ok_or_else(invalid)
            }
            'x' => {
                let two: String = self.chars.get(self.at..self.at + 2).ok_or_else(invalid)?.iter().collect();
                let is_hex = two.chars().all(|c| c.is_ascii_hexdigit());
                self.at += 2;
                let code = u32::from_str_radix(&two, 16).ok().filter(|_| is_hex);
                code.and_then(char::from_u32).ok_or_else(invalid)
            }
            'a' => Ok('\u{7}'),
            'f' => Ok('\u{c}'),
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            'v' => Ok('\u{b}'),
            c if c.is_ascii_alphanumeric() => Err(invalid()),
            c => Ok(c),
        }
    }

    fn number(&mut self, radix: u32, digits_max: usize, first: u32) -> Result<char, String> {
        let mut code = first;
        for _ in 0..digits_max {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(radix)) else { break };
            self.at += 1;
            code = code * radix + digit;
        }
        char::from_u32(code).ok_or_else(|| "invalid escape sequence".into())
    }

    /// Behind `[`.
    fn class(&mut self) -> Result<(), String> {
        self.out.push('[');
        if self.eat('^') {
            self.out.push('^');
        }
        let mut first = true;
        loop {
            let c = self.peek().ok_or("missing closing ]")?;
            if c == ']' && !first {
                self.at += 1;
                self.out.push(']');
                return Ok(());
            }
            first = false;
            if self.looks_at("[:") && self.posix()? {
                continue;
            }
            if c == '\\' {
                self.at += 1;
                if self.known_class()? {
                    continue;
                }
                self.at -= 1;
            }
            let low = self.class_char()?;
            let mut high = low;
            let closes = self.chars.get(self.at + 1).is_none_or(|c| *c == ']');
            if self.peek() == Some('-') && !closes {
                self.at += 1;
                high = self.class_char()?;
            }
            if high < low {
                return Err("invalid character class range".into());
            }
            self.out.push_str(&format!(r"\x{{{:X}}}-\x{{{:X}}}", u32::from(low), u32::from(high)));
        }
    }

    fn class_char(&mut self) -> Result<char, String> {
        match self.next().ok_or("missing closing ]")? {
            '\\' => self.escaped_char(),
            c => Ok(c),
        }
    }

    /// At `[:`, within brackets: a class by name, if it ends.
    fn posix(&mut self) -> Result<bool, String> {
        let rest: String = self.chars.get(self.at + 2..).unwrap_or_default().iter().collect();
        let Some((name, _)) = rest.split_once(":]") else { return Ok(false) };
        if !POSIX.contains(&name.strip_prefix('^').unwrap_or(name)) {
            return Err("invalid character class range".into());
        }
        self.at += name.len() + 4;
        self.out.push_str(&format!("[:{name}:]"));
        Ok(true)
    }
}

/// Whether it is written as names of scripts are, and not a four-letter code.
fn is_script_name(name: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_uppercase()) && word.chars().all(|c| c.is_ascii_alphabetic())
    };
    name.len() > 4 && name.split('_').all(is_word)
}
