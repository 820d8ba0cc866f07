//! What the generated declarations are written with: cuDNN's numbers with their names, and its functions, found when
//! the library is loaded.

/// A type for each enum of the header, with its constants and the header's name of each number. Some numbers have two
/// names; the current one is the first.
macro_rules! numbers {
    ($number:ident($repr:ty), $prefix:literal, $suffix:literal: $($constant:ident = $value:literal),+ $(,)?) => {
        #[repr(transparent)]
        #[derive(Debug, Copy, Clone, Hash, PartialOrd, Ord, PartialEq, Eq)]
        pub struct $number(pub $repr);

        impl $number {
            $(pub const $constant: $number = $number($value);)+

            #[allow(unreachable_patterns)]
            pub const fn c_name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(concat!($prefix, stringify!($constant), $suffix)),)+
                    _ => None,
                }
            }
        }
    };
}

/// The functions of a loaded library. One that the library lacks is an error value; it is called after a look at it.
macro_rules! functions {
    ($(pub fn $function:ident($($name:ident: $given:ty),* $(,)?) $(-> $result:ty)?;)+) => {
        pub struct CudnnFunctions {
            $(pub $function: Result<unsafe extern "C" fn($($given),*) $(-> $result)?, ::libloading::Error>,)+
            // Last: the library outlives what points into it.
            __library: ::libloading::Library,
        }

        impl CudnnFunctions {
            /// # Safety
            ///
            /// The library has cuDNN's functions under these names.
            pub unsafe fn from_library(library: ::libloading::Library) -> CudnnFunctions {
                // SAFETY: the caller's promise; the types are those of the header.
                unsafe {
                    CudnnFunctions {
                        $($function: library.get(concat!(stringify!($function), "\0").as_bytes()).map(|found| *found),)+
                        __library: library,
                    }
                }
            }

            $(
                /// # Safety
                ///
                /// As the header says of this function, which the library has.
                pub unsafe fn $function(&self, $($name: $given),*) $(-> $result)? {
                    // SAFETY: the caller's promise.
                    unsafe { (self.$function.as_ref().expect("the library has the function"))($($name),*) }
                }
            )+
        }
    };
}

pub(crate) use {functions, numbers};
