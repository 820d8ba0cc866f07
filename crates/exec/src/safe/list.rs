//! A list that lies on the stack until it is long. Unlike `smallvec`'s it lets the lifetimes of its elements be
//! shortened, which arguments of a launch need.

use arrayvec::ArrayVec;

/// A list whose first `N` elements are in place.
#[derive(Clone, Debug)]
pub(crate) struct StackList<T, const N: usize> {
    first: ArrayVec<T, N>,
    more: Vec<T>,
}

impl<T, const N: usize> Default for StackList<T, N> {
    fn default() -> StackList<T, N> {
        StackList { first: ArrayVec::new_const(), more: Vec::new() }
    }
}

impl<T, const N: usize> StackList<T, N> {
    #[inline]
    pub(crate) fn push(&mut self, element: T) {
        if let Err(full) = self.first.try_push(element) {
            self.more.push(full.element());
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.first.iter().chain(&self.more)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.more)
    }
}

impl<T, const N: usize> IntoIterator for StackList<T, N> {
    type Item = T;
    type IntoIter = std::iter::Chain<arrayvec::IntoIter<T, N>, std::vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.more)
    }
}

impl<T, const N: usize> FromIterator<T> for StackList<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> StackList<T, N> {
        let mut list = StackList::default();
        elements.into_iter().for_each(|element| list.push(element));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::StackList;

    #[test]
    fn elements_keep_their_order_beyond_the_stack() {
        let mut list: StackList<u32, 3> = (0..7).collect();
        list.iter_mut().for_each(|n| *n += 1);
        assert_eq!(list.iter().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(list.into_iter().sum::<u32>(), 28);
    }
}
